/* SPDX-License-Identifier: Apache-2.0
 *
 * Every limit, exceeded. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

static void set_limit(int resource, rlim_t value)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    CHECK(setrlimit(resource, &limit) == 0);
}

static rlim_t get_limit(int resource)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    return limit.rlim_cur;
}

/* The next free descriptor: as a limit it lets no call open another one. */
static rlim_t next_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && close(fd) == 0);
    return (rlim_t)fd;
}

static void pools(void)
{
    struct stn_pool_opts opts;
    stn_pool *opened[64], *more;
    struct drives drives;
    int i;
    if (!test_has_files())
        return;
    set_limit(RLIMIT_NOFILE, 8192);
    drives_make(&drives, 1);
    pool_opts(&drives, &opts);
    opts.flags = STN_POOL_READ_ONLY;
    opts.reactors = opts.checksum_threads = 1;
    for (i = 0; i < 64; i++)
        OK(stn_pool_open(&opts, &opened[i]));
    ERR(EMFILE, stn_pool_open(&opts, &more));
    for (i = 0; i < 64; i++)
        OK(stn_pool_close(opened[i]));
    drives_remove(&drives);
}

static void sessions(void)
{
    static stn_session *made[1024];
    struct stn_session_opts opts;
    stn_pool *pool;
    struct drives drives;
    stn_session *more;
    int i;
    set_limit(RLIMIT_NOFILE, 8192);
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    CLEAR(opts);
    opts.entries = 1;
    opts.flags = STN_SESSION_NO_MEMORY;
    for (i = 0; i < 1024; i++)
        OK(stn_session_create(pool, &opts, &made[i]));
    ERR(EMFILE, stn_session_create(pool, &opts, &more));
    for (i = 0; i < 1024; i++)
        OK(stn_session_destroy(made[i]));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void lists_and_descriptions(void)
{
    static stn_list *lists[1024];
    static stn_checkpoint *checkpoints[1024];
    stn_checkpoint *more_checkpoint;
    stn_pool *pool;
    stn_list *more_list;
    stn_session *session;
    struct drives drives;
    int i;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    for (i = 0; i < 1024; i++) {
        OK(stn_list_create(pool, &lists[i]));
        OK(stn_checkpoint_show(pool, "a@1", &checkpoints[i]));
    }
    ERR(EMFILE, stn_list_create(pool, &more_list));
    ERR(EMFILE, stn_checkpoint_show(pool, "a@1", &more_checkpoint));
    for (i = 0; i < 1024; i++) {
        OK(stn_list_free(lists[i]));
        OK(stn_checkpoint_free(checkpoints[i]));
    }
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void buffers_and_segments_of_a_session(void)
{
    static char page[4096] __attribute__((aligned(4096)));
    struct stn_begin_opts opts;
    stn_pool *pool;
    uint64_t handle;
    stn_session *session;
    struct drives drives;
    uint32_t key;
    void *memory;
    int i;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    ERR(ENOMEM, stn_buf_alloc(session, 17 * MIB, &memory, &key));
    save(session, "a@1", 100000);
    for (i = 0; i < 1024; i++) {
        OK(stn_buf_alloc(session, 1, &memory, &key));
        OK(stn_open(session, "a@1", 0, &handle, NULL));
    }
    ERR(EMFILE, stn_buf_alloc(session, 1, &memory, &key));
    if (test_has_files())
        ERR(EMFILE, stn_mem_register(session, page, sizeof(page), &key));
    ERR(EMFILE, stn_open(session, "a@1", 0, &handle, NULL));
    CLEAR(opts);
    opts.name = "b@1";
    opts.len_bytes = 1;
    ERR(EMFILE, stn_begin(session, &opts, &handle));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void checkpoints_of_a_pool(void)
{
    struct stn_begin_opts opts;
    struct stn_save_opts save_opts;
    struct stn_pool_info info;
    stn_pool *pool;
    uint64_t handle, i;
    stn_session *session;
    struct drives drives;
    char name[32];
    if (!test_has_files())
        return;
    drives_make_sized(&drives, 1, 64 * MIB, 4096);
    pool = pool_open(&drives);
    session = session_make(pool);
    CLEAR(info);
    OK(stn_pool_info(pool, &info));
    CLEAR(opts);
    opts.name = name;
    opts.len_bytes = 1;
    for (i = 0; i < info.max_checkpoints; i++) {
        snprintf(name, sizeof(name), "a@%d", (int)i);
        OK(stn_begin(session, &opts, &handle));
    }
    opts.name = "b@1";
    ERR(EMFILE, stn_begin(session, &opts, &handle));
    CLEAR(save_opts);
    save_opts.name = "b@1";
    ERR(EMFILE, stn_save(pool, &save_opts));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void memory(void)
{
    struct stn_restore_opts restore;
    struct stn_save_opts save_opts;
    struct stn_session_opts opts;
    stn_pool *pool;
    stn_session *session, *more;
    struct drives drives;
    char bytes[16];
    rlim_t before;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    CLEAR(opts);
    opts.memory_bytes = (uint64_t)1 << 50;
    if (!test_is_instrumented()) /* valgrind itself answers such a length */
        ERR(ENOMEM, stn_session_create(pool, &opts, &more));
    if (!test_is_instrumented() && test_has_files()) {
        CLEAR(restore);
        restore.name = "a@1";
        restore.len_bytes = sizeof(bytes);
        CHECK(OK(stn_restore(pool, &restore, bytes, sizeof(bytes))) == sizeof(bytes));
        before = get_limit(RLIMIT_AS);
        set_limit(RLIMIT_AS, 4096);
        ERR(ENOMEM, stn_restore(pool, &restore, bytes, sizeof(bytes)));
        CLEAR(save_opts);
        save_opts.name = "b@1";
        ERR(ENOMEM, stn_save(pool, &save_opts));
        set_limit(RLIMIT_AS, before);
    }
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void descriptors(void)
{
    struct stn_restore_opts restore;
    struct stn_save_opts save_opts;
    struct stn_session_opts opts;
    stn_pool *pool;
    stn_session *session, *more;
    struct drives drives;
    char bytes[16];
    rlim_t before = get_limit(RLIMIT_NOFILE);
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    set_limit(RLIMIT_NOFILE, next_descriptor());
    ERR(EMFILE, stn_session_eventfd(session));
    CLEAR(opts);
    opts.flags = STN_SESSION_NO_MEMORY;
    ERR(EMFILE, stn_session_create(pool, &opts, &more));
    CLEAR(restore);
    restore.name = "a@1";
    restore.len_bytes = sizeof(bytes);
    /* With huge pages, these cannot be allocated. */
    if (test_has_files()) {
        ERR(EMFILE, stn_restore(pool, &restore, bytes, sizeof(bytes)));
        CLEAR(save_opts);
        save_opts.name = "b@1";
        ERR(EMFILE, stn_save(pool, &save_opts));
    }
    set_limit(RLIMIT_NOFILE, before);
    OK(stn_session_eventfd(session));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static const struct test tests[] = {
    {"pools", pools},
    {"sessions", sessions},
    {"lists_and_descriptions", lists_and_descriptions},
    {"buffers_and_segments_of_a_session", buffers_and_segments_of_a_session},
    {"checkpoints_of_a_pool", checkpoints_of_a_pool},
    {"memory", memory},
    {"descriptors", descriptors},
};

TEST_MAIN(tests)
