/* SPDX-License-Identifier: Apache-2.0
 *
 * What every function does when it is used correctly. */
#define _GNU_SOURCE
#include "test.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

static void versions(void)
{
    char text[32];
    CHECK(stn_version() == STN_VERSION);
    snprintf(text, sizeof(text), "%d.%d.%d", STN_VERSION_MAJOR, STN_VERSION_MINOR,
             STN_VERSION_PATCH);
    CHECK(strcmp(stn_version_string(), text) == 0);
    CHECK(stn_has_spdk() == 0 || stn_has_spdk() == 1);
}

static void words_for_errors(void)
{
    char detail[8];
    int number;
    CHECK(strcmp(stn_strerror(0), "success") == 0);
    CHECK(strcmp(stn_strerror(ENOENT), strerror(ENOENT)) == 0);
    CHECK(stn_strerror(-ENOENT) == stn_strerror(ENOENT));
    for (number = STN_E_DAMAGED; number <= STN_E_PANIC; number++)
        CHECK(strcmp(stn_strerror(-number), stn_strerror(99999)) != 0);
    CHECK(stn_last_error(NULL, 0) == 0);
    ERR(EFAULT, stn_session_destroy(NULL));
    CHECK(stn_last_error(detail, sizeof(detail)) > sizeof(detail));
    CHECK(strlen(detail) == sizeof(detail) - 1);
    detail[0] = 'x';
    CHECK(stn_last_error(detail, 0) > 0 && detail[0] == 'x');
}

struct log {
    int records;
    int inside;
    char last[512];
};

static void log_record(void *context, uint32_t level, const char *target, const char *message)
{
    struct log *log = context;
    CHECK(level >= STN_LOG_ERROR && level <= STN_LOG_TRACE);
    CHECK(target != NULL && message != NULL);
    __atomic_add_fetch(&log->records, 1, __ATOMIC_SEQ_CST);
    snprintf(log->last, sizeof(log->last), "%u %s: %s", level, target, message);
    ERR(EDEADLK, stn_set_log(log_record, log, STN_LOG_TRACE));
}

static void log_records_come_until_they_are_stopped(void)
{
    struct stn_pool_opts opts;
    struct stn_session_opts session_opts;
    struct drives drives;
    struct log log;
    stn_pool *pool;
    stn_session *session;
    int records;
    if (!test_has_files())
        return;
    memset(&log, 0, sizeof(log));
    drives_make(&drives, 1);
    pool_opts(&drives, &opts);
    opts.huge_pages = STN_HUGE_PREFERRED;
    OK(stn_set_log(log_record, &log, STN_LOG_TRACE));
    OK(stn_pool_open(&opts, &pool));
    CLEAR(session_opts);
    session_opts.memory_bytes = 4 * MIB;
    OK(stn_session_create(pool, &session_opts, &session));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    /* A damaged label copy is repaired when the pool is opened, which is a warning. */
    overwrite(drives.paths[0], FIRST_LABEL, "garbage", 7);
    pool = pool_open(&drives);
    OK(stn_pool_close(pool));
    CHECK(log.records > 0);
    CHECK(strstr(log.last, "repaired") != NULL);
    records = log.records;
    OK(stn_set_log(NULL, NULL, STN_LOG_OFF));
    overwrite(drives.paths[0], FIRST_LABEL, "garbage", 7);
    pool = pool_open(&drives);
    OK(stn_pool_close(pool));
    CHECK(log.records == records);
    drives_remove(&drives);
}

static void facts_about_a_pool(void)
{
    struct stn_pool_info info;
    struct stn_drive_info drive;
    struct drives drives;
    stn_pool *pool;
    uint64_t epoch;
    uint32_t i;
    drives_make(&drives, 2);
    pool = pool_open(&drives);
    CLEAR(info);
    OK(stn_pool_info(pool, &info));
    CHECK(info.drives == drives.drive_count && info.copies == 1);
    epoch = info.epoch;
    CHECK(info.chunk_bytes >= 4096 && info.capacity_bytes >= info.free_bytes);
    CHECK(info.free_bytes > 16 * MIB);
    for (i = 0; i < info.drives; i++) {
        CLEAR(drive);
        OK(stn_drive_info(pool, i, &drive));
        CHECK(drive.capacity_bytes > 0 && strlen(drive.serial) > 0 && strlen(drive.model) > 0);
        CHECK(strlen(drive.back_end) > 0 && strlen(drive.address) > 0);
        CHECK(drive.volatile_cache >= -1 && drive.volatile_cache <= 1);
        CHECK(drive.state == STN_DRIVE_MEMBER);
    }
    OK(stn_pool_close(pool));
    pool = pool_open_read_only(&drives);
    OK(stn_pool_info(pool, &info));
    CHECK(info.free_bytes == UINT64_MAX);
    CHECK(info.epoch == epoch);
    OK(stn_pool_close(pool));
    pool = pool_open(&drives);
    OK(stn_pool_info(pool, &info));
    CHECK(info.epoch > epoch);
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void check_restore(stn_pool *pool, const char *name, const char *shard, uint64_t at,
                          uint64_t offset, uint64_t len_bytes, uint64_t expected, size_t shift)
{
    struct stn_restore_opts opts;
    unsigned char *memory = aligned_alloc(4096, 8 * MIB);
    CHECK(memory != NULL);
    memset(memory, 0xdd, 8 * MIB);
    CLEAR(opts);
    opts.name = name;
    opts.shard = shard;
    opts.offset_bytes = offset;
    opts.len_bytes = len_bytes;
    CHECK(OK(stn_restore(pool, &opts, memory + shift, 8 * MIB - shift)) == (int64_t)expected);
    check_pattern(memory + shift, at + offset, expected);
    CHECK(memory[shift + expected] == 0xdd && (shift == 0 || memory[shift - 1] == 0xdd));
    free(memory);
}

static void a_checkpoint_is_saved_listed_and_restored(void)
{
    struct stn_checkpoint_info info;
    struct stn_segment_info segment;
    struct stn_shard_info shard;
    const uint64_t len_bytes = 5 * MIB + 12345;
    struct drives drives;
    stn_checkpoint *checkpoint;
    stn_pool *pool;
    stn_list *list;
    stn_session *session;
    drives_make(&drives, 2);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "run/a@5", len_bytes);
    save(session, "run/a@40", len_bytes);
    save(session, "run/b@7", len_bytes);

    OK(stn_list_create(pool, &list));
    CHECK(OK(stn_list_count(list)) == 3);
    CLEAR(info);
    OK(stn_list_get(list, 1, &info));
    CHECK(strcmp(info.name, "run/a@40") == 0 && info.step == 40);
    CHECK(info.bytes == len_bytes && info.participants == 1 && info.damaged == 0);
    CHECK(info.generation > 0 && info.committed_unix_ns > 1600000000000000000u);
    OK(stn_list_free(list));
    OK(stn_latest(pool, "run/a", &info));
    CHECK(info.step == 40);
    OK(stn_remove(pool, "run/a@40"));
    OK(stn_latest(pool, "run/a", &info));
    CHECK(info.step == 5);

    OK(stn_checkpoint_show(pool, "run/a@5", &checkpoint));
    OK(stn_checkpoint_get(checkpoint, &info));
    CHECK(strcmp(info.name, "run/a@5") == 0);
    CLEAR(segment);
    OK(stn_checkpoint_segment(checkpoint, 0, &segment));
    CHECK(segment.len_bytes == len_bytes && segment.shards == 2 && segment.participant == 0);
    CLEAR(shard);
    OK(stn_checkpoint_shard(checkpoint, 0, 0, &shard));
    CHECK(strcmp(shard.name, "head") == 0 && strcmp(shard.dtype, "U8") == 0);
    CHECK(shard.dimensions == 2 && shard.shape[0] == 2 && shard.shape[1] == 500);
    OK(stn_checkpoint_find(checkpoint, 0, "tail", &shard));
    CHECK(shard.offset_bytes == 1000 && shard.len_bytes == len_bytes - 1000);
    CHECK(strcmp(shard.dtype, "") == 0 && shard.dimensions == 0);
    OK(stn_checkpoint_free(checkpoint));

    check_restore(pool, "run/a@5", NULL, 0, 0, 0, len_bytes, 0);
    check_restore(pool, "run/a@5", NULL, 0, 0, 0, len_bytes, 1);
    check_restore(pool, "run/a@5", NULL, 0, 12345, 3 * MIB, 3 * MIB, 0);
    check_restore(pool, "run/a@5", NULL, 0, 4096, 3 * MIB, 3 * MIB, 4096);
    check_restore(pool, "run/a@5", NULL, 0, len_bytes - 1, 1, 1, 7);
    check_restore(pool, "run/a@5", "head", 0, 0, 0, 1000, 0);
    check_restore(pool, "run/a@5", "tail", 1000, 500, 0, len_bytes - 1500, 3);
    check_restore(pool, "run/a@5", "tail", 1000, 0, 2 * MIB, 2 * MIB, 1000);

    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    pool = pool_open(&drives);
    check_restore(pool, "run/b@7", NULL, 0, 0, 0, len_bytes, 0);
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

/* Saves ranges of memory as the shards "0", "1" ..., and compares what comes back with them. */
static void check_save(stn_pool *pool, const char *name, const unsigned char *const *memory,
                       const uint64_t *len_bytes, uint32_t count)
{
    static const char *const names[] = {"0", "1", "2", "3"};
    struct stn_save_shard shards[4];
    struct stn_checkpoint_info info;
    struct stn_save_opts opts;
    struct stn_restore_opts restore;
    unsigned char *back;
    uint64_t all = 0;
    uint32_t i;
    memset(shards, 0, sizeof(shards));
    for (i = 0; i < count; i++) {
        shards[i].name = names[i];
        shards[i].bytes = memory[i];
        shards[i].len_bytes = len_bytes[i];
        shards[i].dtype = "U8";
        shards[i].shape = &len_bytes[i];
        shards[i].dimensions = 1;
        all += len_bytes[i];
    }
    CLEAR(opts);
    opts.name = name;
    opts.shards = shards;
    opts.shard_count = count;
    opts.shard_size = sizeof(shards[0]);
    CHECK(OK(stn_save(pool, &opts)) == (int64_t)all);
    CLEAR(info);
    OK(stn_latest(pool, "one/call", &info));
    CHECK(strcmp(info.name, name) == 0 && info.bytes == all && info.participants == 1);
    /* Zeroed: valgrind does not see what the kernel writes through io_uring. */
    back = calloc(all + 1, 1);
    CHECK(back != NULL);
    CLEAR(restore);
    restore.name = name;
    for (i = 0; i < count; i++) {
        restore.shard = names[i];
        CHECK(OK(stn_restore(pool, &restore, back, all + 1)) == (int64_t)len_bytes[i]);
        CHECK(len_bytes[i] == 0 || memcmp(back, memory[i], len_bytes[i]) == 0);
    }
    restore.shard = NULL;
    CHECK(OK(stn_restore(pool, &restore, back, all + 1)) == (int64_t)all);
    free(back);
    OK(stn_remove(pool, name));
}

static void a_checkpoint_is_saved_in_one_call(void)
{
    const unsigned char *parts[4];
    uint64_t len_bytes[4], i;
    struct drives drives;
    stn_pool *pool;
    stn_session *session;
    unsigned char *memory;
    void *own;
    uint32_t key, round;
    drives_make(&drives, 2);
    pool = pool_open(&drives);
    session = session_make(pool);
    OK(stn_buf_alloc(session, 8 * MIB, &own, &key));
    memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (round = 0; round < 3; round++) {
        /* Ordinary memory, that of a session, and read-only memory. */
        unsigned char *from = round == 1 ? own : memory;
        if (round < 2)
            for (i = 0; i < 8 * MIB; i++)
                from[i] = pattern(i + round);
        else
            CHECK(mprotect(memory, 8 * MIB, PROT_READ) == 0);
        /* One shard, aligned and not. */
        parts[0] = from;
        len_bytes[0] = 8 * MIB;
        check_save(pool, "one/call@1", parts, len_bytes, 1);
        parts[0] = from + 13;
        len_bytes[0] = 7 * MIB + 5;
        check_save(pool, "one/call@2", parts, len_bytes, 1);
        /* Several: two follow each other in memory, one is empty, one lies before its predecessor. */
        parts[0] = from;
        len_bytes[0] = 3 * MIB / 2;
        parts[1] = from + len_bytes[0];
        len_bytes[1] = 3 * MIB;
        parts[2] = NULL;
        len_bytes[2] = 0;
        parts[3] = from + MIB;
        len_bytes[3] = 2 * MIB + 1;
        check_save(pool, "one/call@3", parts, len_bytes, 4);
    }
    check_save(pool, "one/call@4", parts, len_bytes, 0);
    CHECK(munmap(memory, 8 * MIB) == 0);
    /* The drives still know the session's memory. */
    save(session, "one/call@5", 5 * MIB);
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void a_segment_is_read_through_a_session(void)
{
    struct stn_segment_info info;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct drives drives;
    uint64_t checkpoint;
    stn_pool *pool;
    stn_session *session;
    uint32_t key;
    void *memory;
    drives_make(&drives, 2);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 3 * MIB + 5);
    CLEAR(info);
    OK(stn_open(session, "a@1", 0, &checkpoint, &info));
    CHECK(info.len_bytes == 3 * MIB + 5 && info.shards == 2);
    OK(stn_buf_alloc(session, 4 * MIB, &memory, &key));
    CHECK(((uintptr_t)memory & 4095) == 0);
    memset(memory, 0, 4 * MIB);
    sqe_transfer(&sqe, STN_OP_READ, checkpoint, key, 2 * MIB + 5, info.chunk_bytes);
    if (info.chunk_bytes == MIB) {
        cqe = session_run(session, &sqe);
        CHECK(cqe.result == (int64_t)(2 * MIB + 5));
        check_pattern(memory, MIB, 2 * MIB + 5);
    }
    OK(stn_close(session, checkpoint));
    OK(stn_open(session, "a@1", 0, &checkpoint, NULL));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void registered_memory_is_a_buffer(void)
{
    struct stn_session_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct drives drives;
    uint64_t checkpoint, i;
    stn_pool *pool;
    stn_session *session, *other;
    uint32_t key;
    unsigned char *memory;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (test_has_files() ? 0 : MAP_HUGETLB);
    memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    CLEAR(opts);
    opts.flags = STN_SESSION_NO_MEMORY;
    OK(stn_session_create(pool, &opts, &session));
    for (i = 0; i < 4 * MIB; i++)
        memory[i] = pattern(i);
    OK(stn_mem_register(session, memory, 4 * MIB, &key));
    checkpoint = begin(session, "own@1", 4 * MIB);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 4 * MIB, 0);
    cqe = session_run(session, &sqe);
    CHECK(cqe.result == (int64_t)(4 * MIB));
    commit(session, checkpoint);
    OK(stn_close(session, checkpoint));
    memset(memory, 0, 4 * MIB);
    OK(stn_open(session, "own@1", 0, &checkpoint, NULL));
    sqe.opcode = STN_OP_READ;
    sqe.checkpoint = checkpoint;
    cqe = session_run(session, &sqe);
    CHECK(cqe.result == (int64_t)(4 * MIB));
    check_pattern(memory, 0, 4 * MIB);
    OK(stn_close(session, checkpoint));
    /* Another session may register the same, and keeps it when the first one gives it back. */
    OK(stn_session_create(pool, &opts, &other));
    OK(stn_mem_register(other, memory, 4 * MIB, &sqe.buffer));
    OK(stn_mem_unregister(session, key));
    memset(memory, 0, 4 * MIB);
    OK(stn_open(other, "own@1", 0, &checkpoint, NULL));
    sqe.checkpoint = checkpoint;
    cqe = session_run(other, &sqe);
    CHECK(cqe.result == (int64_t)(4 * MIB));
    check_pattern(memory, 0, 4 * MIB);
    OK(stn_mem_unregister(other, sqe.buffer));
    CHECK(munmap(memory, 4 * MIB) == 0);
    OK(stn_session_destroy(other));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void the_eventfd_follows_the_completions(void)
{
    struct stn_cqe cqes[8];
    struct stn_sqe sqes[3];
    struct pollfd poller;
    struct drives drives;
    stn_pool *pool;
    stn_session *session;
    int round, taken;
    memset(sqes, 0, sizeof(sqes));
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    poller.fd = (int)OK(stn_session_eventfd(session));
    poller.events = POLLIN;
    CHECK(stn_session_eventfd(session) == poller.fd);
    CHECK(poll(&poller, 1, 0) == 0);
    for (round = 0; round < 200; round++) {
        CHECK(OK(stn_submit(session, sqes, 3)) == 3);
        for (taken = 0; taken < 3;) {
            CHECK(poll(&poller, 1, 30000) == 1);
            taken += (int)OK(stn_peek(session, cqes, 1));
        }
        while (poll(&poller, 1, 0) == 1)
            CHECK(OK(stn_peek(session, cqes, 8)) == 0);
    }
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

/* The library leaves signals to the program. */
static void signals_are_the_programs(void)
{
    struct sigaction before[65], after;
    sigset_t mask_before, mask_after;
    struct drives drives;
    stn_pool *pool;
    int number;
    memset(before, 0, sizeof(before));
    for (number = 1; number < 65; number++)
        sigaction(number, NULL, &before[number]);
    sigprocmask(SIG_SETMASK, NULL, &mask_before);
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    OK(stn_pool_close(pool));
    sigprocmask(SIG_SETMASK, NULL, &mask_after);
    for (number = 1; number < 65; number++) {
        memset(&after, 0, sizeof(after));
        sigaction(number, NULL, &after);
        CHECK(after.sa_handler == before[number].sa_handler);
        CHECK(sigismember(&mask_before, number) == sigismember(&mask_after, number));
    }
    drives_remove(&drives);
}

static const struct test tests[] = {
    {"versions", versions},
    {"words_for_errors", words_for_errors},
    {"log_records_come_until_they_are_stopped", log_records_come_until_they_are_stopped},
    {"facts_about_a_pool", facts_about_a_pool},
    {"a_checkpoint_is_saved_listed_and_restored", a_checkpoint_is_saved_listed_and_restored},
    {"a_checkpoint_is_saved_in_one_call", a_checkpoint_is_saved_in_one_call},
    {"a_segment_is_read_through_a_session", a_segment_is_read_through_a_session},
    {"registered_memory_is_a_buffer", registered_memory_is_a_buffer},
    {"the_eventfd_follows_the_completions", the_eventfd_follows_the_completions},
    {"signals_are_the_programs", signals_are_the_programs},
};

TEST_MAIN(tests)
