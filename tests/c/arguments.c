/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalid arguments, and things that do not exist. */
#define _GNU_SOURCE
#include "test.h"

#include <sys/mman.h>
#include <unistd.h>

/* Sizes that no version ever had, and options that this one does not know. */
#define WRONG_SIZES(structure, call) \
    do { \
        (structure).size = 0; \
        ERR(EINVAL, call); \
        (structure).size = 4; \
        ERR(EINVAL, call); \
        (structure).size = UINT32_MAX; \
        ERR(EINVAL, call); \
        (structure).size = sizeof(structure); \
    } while (0)

/* A structure with a field at its end that only a newer version knows. */
#define LATER(type) \
    struct { \
        struct type opts; \
        uint64_t later; \
    }

static void options_of_format(void)
{
    LATER(stn_format_opts) later;
    struct stn_format_opts opts;
    const char *drive = "/var/tmp/stn-test-absent", *empty = "", *strange = "trtype:PCIe";
    const char *binary = "\xff\xfe";
    CLEAR(opts);
    opts.drives = &drive;
    opts.drive_count = 1;
    WRONG_SIZES(opts, stn_format(&opts));
    opts.flags = 1u << 31;
    ERR(EINVAL, stn_format(&opts));
    opts.flags = 0;
    opts.reserved = 1;
    ERR(EINVAL, stn_format(&opts));
    opts.reserved = 0;
    opts.drive_count = 0;
    ERR(EINVAL, stn_format(&opts));
    opts.drive_count = 1;
    ERR(ENODEV, stn_format(&opts));
    opts.create_bytes = 1;
    ERR(EINVAL, stn_format(&opts));
    opts.create_bytes = 64 * MIB;
    opts.chunk_bytes = 5000;
    ERR(EINVAL, stn_format(&opts));
    opts.chunk_bytes = 0;
    opts.metadata_bytes = MIB - 1;
    ERR(EINVAL, stn_format(&opts));
    opts.metadata_bytes = 33 * MIB;
    ERR(EINVAL, stn_format(&opts));
    opts.metadata_bytes = 0;
    opts.drives = &empty;
    ERR(EINVAL, stn_format(&opts));
    opts.drives = &strange;
    ERR(EINVAL, stn_format(&opts));
    opts.drives = &binary;
    ERR(EINVAL, stn_format(&opts));
    memset(&later, 0, sizeof(later));
    later.opts = opts;
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_format(&later.opts));
    CHECK(access(drive, F_OK) != 0);
}

static void options_of_open(void)
{
    LATER(stn_pool_opts) later;
    struct stn_pool_opts opts;
    stn_pool *pool = NULL;
    uint32_t core = 60000;
    struct drives drives;
    const char *drive = "/var/tmp/stn-test-absent";
    drives_make(&drives, 1);
    pool_opts(&drives, &opts);
    WRONG_SIZES(opts, stn_pool_open(&opts, &pool));
    opts.flags = 1u << 31;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    opts.flags = 0;
    opts.huge_pages = 3;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    pool_opts(&drives, &opts);
    opts.drive_count = 0;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    opts.drive_count = 100000;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    opts.drive_count = 1;
    opts.queue_depth = 1000000;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    opts.queue_depth = 0;
    opts.cores = &core;
    opts.core_count = 1;
    ERR(EINVAL, stn_pool_open(&opts, &pool));
    opts.core_count = 0;
    opts.drives = &drive;
    ERR(ENODEV, stn_pool_open(&opts, &pool));
    memset(&later, 0, sizeof(later));
    pool_opts(&drives, &later.opts);
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_pool_open(&later.opts, &pool));
    CHECK(pool == NULL);
    later.later = 0;
    OK(stn_pool_open(&later.opts, &pool));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void sizes_and_places_of_facts(void)
{
    struct stn_checkpoint_info info;
    struct stn_segment_info segment;
    struct stn_drive_info drive;
    struct stn_shard_info shard;
    struct stn_pool_info facts;
    stn_checkpoint *checkpoint;
    stn_pool *pool;
    uint64_t handle;
    stn_list *list;
    stn_session *session;
    struct drives drives;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    CLEAR(info);
    CLEAR(segment);
    CLEAR(drive);
    CLEAR(shard);
    CLEAR(facts);
    WRONG_SIZES(facts, stn_pool_info(pool, &facts));
    WRONG_SIZES(drive, stn_drive_info(pool, 0, &drive));
    ERR(ERANGE, stn_drive_info(pool, 1, &drive));
    OK(stn_list_create(pool, &list));
    WRONG_SIZES(info, stn_list_get(list, 0, &info));
    ERR(ERANGE, stn_list_get(list, 1, &info));
    ERR(ERANGE, stn_list_get(list, UINT64_MAX, &info));
    OK(stn_list_free(list));
    WRONG_SIZES(info, stn_latest(pool, "a", &info));
    OK(stn_checkpoint_show(pool, "a@1", &checkpoint));
    WRONG_SIZES(info, stn_checkpoint_get(checkpoint, &info));
    WRONG_SIZES(segment, stn_checkpoint_segment(checkpoint, 0, &segment));
    ERR(ERANGE, stn_checkpoint_segment(checkpoint, 1, &segment));
    WRONG_SIZES(shard, stn_checkpoint_shard(checkpoint, 0, 0, &shard));
    ERR(ERANGE, stn_checkpoint_shard(checkpoint, 1, 0, &shard));
    ERR(ERANGE, stn_checkpoint_shard(checkpoint, 0, 2, &shard));
    WRONG_SIZES(shard, stn_checkpoint_find(checkpoint, 0, "head", &shard));
    ERR(EINVAL, stn_checkpoint_find(checkpoint, 0, "\xff", &shard));
    ERR(ERANGE, stn_checkpoint_find(checkpoint, 1, "head", &shard));
    ERR(ENOENT, stn_checkpoint_find(checkpoint, 0, "hea", &shard));
    OK(stn_checkpoint_free(checkpoint));
    WRONG_SIZES(segment, stn_open(session, "a@1", 0, &handle, &segment));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void names_that_are_none_or_of_nothing(void)
{
    static const char *const wrong[] = {"", "a", "@1", "a@", "a@x", "a b@1", "\xff@1", "a@-1"};
    struct stn_checkpoint_info info;
    struct stn_restore_opts restore;
    struct stn_save_opts save_opts;
    struct stn_begin_opts opts;
    stn_checkpoint *checkpoint;
    stn_pool *pool;
    uint64_t handle;
    stn_session *session;
    struct drives drives;
    char bytes[16];
    size_t i;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    CLEAR(info);
    CLEAR(restore);
    CLEAR(save_opts);
    CLEAR(opts);
    opts.len_bytes = 1;
    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        restore.name = opts.name = save_opts.name = wrong[i];
        ERR(EINVAL, stn_remove(pool, wrong[i]));
        ERR(EINVAL, stn_checkpoint_show(pool, wrong[i], &checkpoint));
        ERR(EINVAL, stn_restore(pool, &restore, bytes, sizeof(bytes)));
        ERR(EINVAL, stn_save(pool, &save_opts));
        ERR(EINVAL, stn_begin(session, &opts, &handle));
        ERR(EINVAL, stn_open(session, wrong[i], 0, &handle, NULL));
    }
    ERR(EINVAL, stn_latest(pool, "a@1", &info));
    ERR(EINVAL, stn_latest(pool, "", &info));
    ERR(ENOENT, stn_latest(pool, "b", &info));
    ERR(ENOENT, stn_remove(pool, "a@2"));
    ERR(ENOENT, stn_checkpoint_show(pool, "a@2", &checkpoint));
    ERR(ENOENT, stn_open(session, "a@2", 0, &handle, NULL));
    ERR(EINVAL, stn_open(session, "a@1", 1, &handle, NULL));
    ERR(EBADF, stn_close(session, 0));
    ERR(EBADF, stn_close(session, UINT64_MAX));
    OK(stn_open(session, "a@1", 0, &handle, NULL));
    ERR(EBUSY, stn_remove(pool, "a@1")); /* a session has it open */
    OK(stn_close(session, handle));
    OK(stn_remove(pool, "a@1"));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void options_of_save(void)
{
    struct {
        struct stn_save_shard shard;
        uint64_t later;
    } later_shard;
    LATER(stn_save_opts) later;
    struct stn_save_shard shards[2];
    struct stn_begin_opts begin_opts;
    struct stn_save_opts opts;
    uint64_t checkpoint;
    static char bytes[64];
    stn_pool *pool;
    stn_session *session;
    struct drives drives;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    memset(shards, 0, sizeof(shards));
    shards[0].name = "one";
    shards[0].bytes = bytes;
    shards[0].len_bytes = 10;
    shards[1].name = "two";
    shards[1].bytes = bytes;
    shards[1].len_bytes = sizeof(bytes);
    CLEAR(opts);
    opts.name = "a@1";
    opts.shards = shards;
    opts.shard_count = 2;
    opts.shard_size = sizeof(shards[0]);
    WRONG_SIZES(opts, stn_save(pool, &opts));
    opts.flags = 1;
    ERR(EINVAL, stn_save(pool, &opts));
    opts.flags = 0;
    opts.participant = 1;
    ERR(EINVAL, stn_save(pool, &opts));
    opts.participant = 0;
    opts.participants = 1u << 31;
    ERR(EINVAL, stn_save(pool, &opts));
    opts.participants = 0;
    opts.shard_size = sizeof(shards[0]) - 1;
    ERR(EINVAL, stn_save(pool, &opts));
    opts.shard_size = sizeof(shards[0]);
    shards[1].name = "one";
    ERR(EINVAL, stn_save(pool, &opts)); /* named twice */
    shards[1].name = "two";
    shards[1].dimensions = 17;
    ERR(EINVAL, stn_save(pool, &opts));
    shards[1].dimensions = 0;
    shards[1].reserved = 1;
    ERR(EINVAL, stn_save(pool, &opts));
    shards[1].reserved = 0;
    shards[1].dtype = "a name of a type that is too long";
    ERR(EINVAL, stn_save(pool, &opts));
    shards[1].dtype = NULL;
    shards[1].len_bytes = UINT64_MAX;
    ERR(EINVAL, stn_save(pool, &opts)); /* together longer than any number */
    shards[1].len_bytes = UINT64_MAX - 10;
    ERR(EINVAL, stn_save(pool, &opts));
    shards[0].len_bytes = UINT64_MAX - sizeof(bytes);
    shards[1].len_bytes = sizeof(bytes);
    ERR(EINVAL, stn_save(pool, &opts));
    shards[0].len_bytes = 10;
    shards[1].len_bytes = MIB * MIB * 512;
    ERR(ENOSPC, stn_save(pool, &opts)); /* the bytes are not read */
    shards[1].len_bytes = sizeof(bytes);
    memset(&later_shard, 0, sizeof(later_shard));
    later_shard.shard = shards[0];
    later_shard.later = 1;
    opts.shards = &later_shard.shard;
    opts.shard_count = 1;
    opts.shard_size = sizeof(later_shard);
    ERR(E2BIG, stn_save(pool, &opts));
    opts.shards = shards;
    opts.shard_count = 2;
    opts.shard_size = sizeof(shards[0]);
    memset(&later, 0, sizeof(later));
    later.opts = opts;
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_save(pool, &later.opts));
    later.later = 0;
    CHECK(OK(stn_save(pool, &later.opts)) == 10 + sizeof(bytes));
    ERR(EEXIST, stn_save(pool, &opts));
    /* What another participant declared, and this one joined. */
    CLEAR(begin_opts);
    begin_opts.name = opts.name = "a@2";
    begin_opts.participants = 2;
    begin_opts.len_bytes = 1;
    OK(stn_begin(session, &begin_opts, &checkpoint));
    opts.participants = 3;
    opts.participant = 1;
    ERR(EINVAL, stn_save(pool, &opts));
    opts.participants = 2;
    opts.participant = 0;
    ERR(EEXIST, stn_save(pool, &opts));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void options_of_restore(void)
{
    LATER(stn_restore_opts) later;
    struct stn_restore_opts opts;
    unsigned char bytes[64];
    stn_pool *pool;
    stn_session *session;
    struct drives drives;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    CLEAR(opts);
    opts.name = "a@1";
    opts.len_bytes = 64;
    WRONG_SIZES(opts, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.flags = 1;
    ERR(EINVAL, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.flags = 0;
    opts.reserved = 1;
    ERR(EINVAL, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.reserved = 0;
    opts.participant = 1;
    ERR(EINVAL, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.participant = 0;
    opts.shard = "nothing";
    ERR(ENOENT, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.shard = "head";
    opts.offset_bytes = 1001;
    ERR(ERANGE, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.offset_bytes = 937;
    ERR(ERANGE, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.offset_bytes = UINT64_MAX;
    ERR(ERANGE, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.offset_bytes = 0;
    opts.len_bytes = 65;
    ERR(ENOBUFS, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    opts.name = "a@2";
    ERR(ENOENT, stn_restore(pool, &opts, bytes, sizeof(bytes)));
    memset(&later, 0, sizeof(later));
    later.opts = opts;
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_restore(pool, &later.opts, bytes, sizeof(bytes)));
    opts.name = "a@1";
    opts.offset_bytes = 1000;
    opts.len_bytes = 0;
    CHECK(OK(stn_restore(pool, &opts, bytes, sizeof(bytes))) == 0); /* the shard's end */
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

/* A touch of it would end the process. */
static void memory_that_cannot_be_read(stn_session *session)
{
    const uint64_t bytes = 4096 * 16;
    uint32_t key;
    FILE *file = tmpfile();
    char *memory, *mapped;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + 4096, 4096, PROT_NONE) == 0);
    ERR(EFAULT, stn_mem_register(session, memory, bytes, &key));
    ERR(EFAULT, stn_mem_register(session, memory + 4096, 4096, &key));
    CHECK(mprotect(memory + 4096, 4096, PROT_READ | PROT_WRITE) == 0);
    CHECK(munmap(memory + bytes - 4096, 4096) == 0);
    ERR(EFAULT, stn_mem_register(session, memory, bytes, &key));
    CHECK(munmap(memory, bytes - 4096) == 0);
    ERR(EFAULT, stn_mem_register(session, memory, 4096, &key));
    CHECK(file != NULL && ftruncate(fileno(file), 4096) == 0);
    mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    CHECK(mapped != MAP_FAILED);
    ERR(EFAULT, stn_mem_register(session, mapped, 8192, &key));
    CHECK(munmap(mapped, 8192) == 0);
    fclose(file);
}

static void options_of_sessions_and_buffers(void)
{
    LATER(stn_session_opts) later;
    struct stn_session_opts opts;
    stn_session *session = NULL, *bare;
    stn_pool *pool;
    struct drives drives;
    uint32_t key;
    void *memory;
    static char page[8192] __attribute__((aligned(4096)));
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    CLEAR(opts);
    WRONG_SIZES(opts, stn_session_create(pool, &opts, &session));
    opts.flags = 2;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    opts.flags = STN_SESSION_NO_MEMORY;
    opts.memory_bytes = 1;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    opts.memory_bytes = 0;
    opts.reserved = 1;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    opts.reserved = 0;
    opts.entries = 3;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    opts.entries = 8192;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    opts.entries = 1;
    opts.flags = 0;
    opts.memory_bytes = UINT64_MAX;
    ERR(EINVAL, stn_session_create(pool, &opts, &session));
    memset(&later, 0, sizeof(later));
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_session_create(pool, &later.opts, &session));
    CHECK(session == NULL);
    CLEAR(opts);
    opts.flags = STN_SESSION_NO_MEMORY;
    OK(stn_session_create(pool, &opts, &bare));
    ERR(EINVAL, stn_buf_alloc(bare, 4096, &memory, &key));
    ERR(EINVAL, stn_mem_register(bare, page + 1, 4096, &key));
    ERR(EINVAL, stn_mem_register(bare, page, 4095, &key));
    ERR(EINVAL, stn_mem_register(bare, page, 0, &key));
    memory_that_cannot_be_read(bare);
    if (!test_has_files())
        ERR(STN_E_ENVIRONMENT, stn_mem_register(bare, page, 4096, &key));
    OK(stn_session_destroy(bare));
    session = session_make(pool);
    ERR(EINVAL, stn_buf_alloc(session, 0, &memory, &key));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void options_of_begin(void)
{
    struct {
        struct stn_shard shard;
        uint64_t later;
    } later_shard;
    LATER(stn_begin_opts) later;
    struct stn_shard shards[2];
    struct stn_begin_opts opts;
    uint64_t checkpoint = 7, first;
    stn_pool *pool;
    stn_session *session;
    struct drives drives;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    CLEAR(opts);
    opts.name = "a@1";
    opts.len_bytes = 100000;
    WRONG_SIZES(opts, stn_begin(session, &opts, &checkpoint));
    opts.flags = 1;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    opts.flags = 0;
    opts.participant = 1;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    opts.participant = 0;
    opts.len_bytes = 0;
    opts.participants = 1u << 31;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    opts.participants = 2;
    opts.len_bytes = UINT64_MAX;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    opts.len_bytes = 100000;
    memset(shards, 0, sizeof(shards));
    shards[0].name = "one";
    shards[0].len_bytes = 10;
    shards[1].name = "two";
    shards[1].offset_bytes = 9;
    shards[1].len_bytes = 10;
    opts.shards = shards;
    opts.shard_count = 2;
    opts.shard_size = sizeof(shards[0]) - 1;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    opts.shard_size = sizeof(shards[0]);
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint)); /* they overlap */
    shards[1].offset_bytes = 99995;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint)); /* beyond the segment */
    shards[1].offset_bytes = 10;
    shards[1].name = "one";
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint)); /* named twice */
    shards[1].name = "two";
    shards[1].dimensions = 17;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    shards[1].dimensions = 0;
    shards[1].reserved = 1;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    shards[1].reserved = 0;
    shards[1].dtype = "a name of a type that is too long";
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint));
    memset(&later_shard, 0, sizeof(later_shard));
    later_shard.shard = shards[0];
    later_shard.later = 1;
    opts.shards = &later_shard.shard;
    opts.shard_count = 1;
    opts.shard_size = sizeof(later_shard);
    ERR(E2BIG, stn_begin(session, &opts, &checkpoint));
    opts.shard_count = 0;
    memset(&later, 0, sizeof(later));
    later.opts = opts;
    later.opts.size = sizeof(later);
    later.later = 1;
    ERR(E2BIG, stn_begin(session, &later.opts, &checkpoint));
    CHECK(checkpoint == 7);
    OK(stn_begin(session, &opts, &first));
    ERR(EEXIST, stn_begin(session, &opts, &checkpoint)); /* this participant is there */
    opts.participant = 1;
    opts.participants = 3;
    ERR(EINVAL, stn_begin(session, &opts, &checkpoint)); /* the first one said two */
    OK(stn_close(session, first));
    save(session, "b@1", 100000);
    CLEAR(opts);
    opts.name = "b@1";
    opts.len_bytes = 1;
    ERR(EEXIST, stn_begin(session, &opts, &checkpoint));
    opts.name = "c@1";
    opts.len_bytes = MIB * MIB * 512;
    ERR(ENOSPC, stn_begin(session, &opts, &checkpoint));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void log_levels(void)
{
    ERR(EINVAL, stn_set_log(NULL, NULL, STN_LOG_TRACE + 1));
}

static void a_pool_that_is_open_for_reading(void)
{
    struct stn_save_opts save_opts;
    struct stn_begin_opts opts;
    stn_pool *pool;
    uint64_t checkpoint;
    stn_session *session;
    struct drives drives;
    drives_make(&drives, 1);
    pool = pool_open_read_only(&drives);
    session = session_make(pool);
    CLEAR(opts);
    opts.name = "a@1";
    opts.len_bytes = 1;
    ERR(EROFS, stn_begin(session, &opts, &checkpoint));
    CLEAR(save_opts);
    save_opts.name = "a@1";
    ERR(EROFS, stn_save(pool, &save_opts));
    ERR(EROFS, stn_remove(pool, "a@1"));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static const struct test tests[] = {
    {"options_of_format", options_of_format},
    {"options_of_open", options_of_open},
    {"sizes_and_places_of_facts", sizes_and_places_of_facts},
    {"names_that_are_none_or_of_nothing", names_that_are_none_or_of_nothing},
    {"options_of_save", options_of_save},
    {"options_of_restore", options_of_restore},
    {"options_of_sessions_and_buffers", options_of_sessions_and_buffers},
    {"options_of_begin", options_of_begin},
    {"log_levels", log_levels},
    {"a_pool_that_is_open_for_reading", a_pool_that_is_open_for_reading},
};

TEST_MAIN(tests)
