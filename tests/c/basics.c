/* SPDX-License-Identifier: Apache-2.0
 *
 * What every function does when it is used as it should be. */
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
    ERR(EFAULT, stn_ring_destroy(NULL));
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
    struct stn_engine_opts opts;
    struct stn_ring_opts ring_opts;
    struct pool pool;
    struct log log;
    stn_engine *engine;
    stn_ring *ring;
    int records;
    if (!test_has_files())
        return;
    memset(&log, 0, sizeof(log));
    pool_make(&pool, 1);
    pool_opts(&pool, &opts);
    opts.huge_pages = STN_HUGE_PREFERRED;
    OK(stn_set_log(log_record, &log, STN_LOG_TRACE));
    OK(stn_engine_open(&opts, &engine));
    CLEAR(ring_opts);
    ring_opts.memory_bytes = 4 * MIB;
    OK(stn_ring_create(engine, &ring_opts, &ring));
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    /* A damaged label copy is repaired when the pool is opened, which is a warning. */
    overwrite(pool.paths[0], FIRST_LABEL, "garbage", 7);
    engine = pool_open(&pool);
    OK(stn_engine_close(engine));
    CHECK(log.records > 0);
    CHECK(strstr(log.last, "repaired") != NULL);
    records = log.records;
    OK(stn_set_log(NULL, NULL, STN_LOG_OFF));
    overwrite(pool.paths[0], FIRST_LABEL, "garbage", 7);
    engine = pool_open(&pool);
    OK(stn_engine_close(engine));
    CHECK(log.records == records);
    pool_remove(&pool);
}

static void facts_about_a_pool(void)
{
    struct stn_pool_info info;
    struct stn_drive_info drive;
    struct pool pool;
    stn_engine *engine;
    uint64_t epoch;
    uint32_t i;
    pool_make(&pool, 2);
    engine = pool_open(&pool);
    CLEAR(info);
    OK(stn_pool_info(engine, &info));
    CHECK(info.drives == pool.drive_count && info.copies == 1);
    epoch = info.epoch;
    CHECK(info.chunk_bytes >= 4096 && info.capacity_bytes >= info.free_bytes);
    CHECK(info.free_bytes > 16 * MIB);
    for (i = 0; i < info.drives; i++) {
        CLEAR(drive);
        OK(stn_drive_info(engine, i, &drive));
        CHECK(drive.capacity_bytes > 0 && strlen(drive.serial) > 0 && strlen(drive.model) > 0);
        CHECK(strlen(drive.back_end) > 0 && strlen(drive.address) > 0);
        CHECK(drive.volatile_cache >= -1 && drive.volatile_cache <= 1);
        CHECK(drive.state == STN_DRIVE_MEMBER);
    }
    OK(stn_engine_close(engine));
    engine = pool_open_read_only(&pool);
    OK(stn_pool_info(engine, &info));
    CHECK(info.free_bytes == UINT64_MAX);
    CHECK(info.epoch == epoch);
    OK(stn_engine_close(engine));
    engine = pool_open(&pool);
    OK(stn_pool_info(engine, &info));
    CHECK(info.epoch == epoch + 1);
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void check_restore(stn_engine *engine, const char *name, const char *shard, uint64_t at,
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
    CHECK(OK(stn_restore(engine, &opts, memory + shift, 8 * MIB - shift)) == (int64_t)expected);
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
    struct pool pool;
    stn_checkpoint *checkpoint;
    stn_engine *engine;
    stn_list *list;
    stn_ring *ring;
    pool_make(&pool, 2);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    save(ring, "run/a@5", len_bytes);
    save(ring, "run/a@40", len_bytes);
    save(ring, "run/b@7", len_bytes);

    OK(stn_list_create(engine, &list));
    CHECK(OK(stn_list_count(list)) == 3);
    CLEAR(info);
    OK(stn_list_get(list, 1, &info));
    CHECK(strcmp(info.name, "run/a@40") == 0 && info.step == 40);
    CHECK(info.bytes == len_bytes && info.participants == 1 && info.damaged == 0);
    CHECK(info.generation > 0 && info.committed_unix_ns > 1600000000000000000u);
    OK(stn_list_free(list));
    OK(stn_latest(engine, "run/a", &info));
    CHECK(info.step == 40);
    OK(stn_remove(engine, "run/a@40"));
    OK(stn_latest(engine, "run/a", &info));
    CHECK(info.step == 5);

    OK(stn_checkpoint_show(engine, "run/a@5", &checkpoint));
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

    check_restore(engine, "run/a@5", NULL, 0, 0, 0, len_bytes, 0);
    check_restore(engine, "run/a@5", NULL, 0, 0, 0, len_bytes, 1);
    check_restore(engine, "run/a@5", NULL, 0, 12345, 3 * MIB, 3 * MIB, 0);
    check_restore(engine, "run/a@5", NULL, 0, 4096, 3 * MIB, 3 * MIB, 4096);
    check_restore(engine, "run/a@5", NULL, 0, len_bytes - 1, 1, 1, 7);
    check_restore(engine, "run/a@5", "head", 0, 0, 0, 1000, 0);
    check_restore(engine, "run/a@5", "tail", 1000, 500, 0, len_bytes - 1500, 3);
    check_restore(engine, "run/a@5", "tail", 1000, 0, 2 * MIB, 2 * MIB, 1000);

    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    engine = pool_open(&pool);
    check_restore(engine, "run/b@7", NULL, 0, 0, 0, len_bytes, 0);
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void a_segment_is_read_through_a_ring(void)
{
    struct stn_segment_info info;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct pool pool;
    uint64_t checkpoint;
    stn_engine *engine;
    stn_ring *ring;
    uint32_t key;
    void *memory;
    pool_make(&pool, 2);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    save(ring, "a@1", 3 * MIB + 5);
    CLEAR(info);
    OK(stn_open(ring, "a@1", 0, &checkpoint, &info));
    CHECK(info.len_bytes == 3 * MIB + 5 && info.shards == 2);
    OK(stn_buf_alloc(ring, 4 * MIB, &memory, &key));
    CHECK(((uintptr_t)memory & 4095) == 0);
    memset(memory, 0, 4 * MIB);
    sqe_transfer(&sqe, STN_OP_READ, checkpoint, key, 2 * MIB + 5, info.chunk_bytes);
    if (info.chunk_bytes == MIB) {
        cqe = ring_run(ring, &sqe);
        CHECK(cqe.result == (int64_t)(2 * MIB + 5));
        check_pattern(memory, MIB, 2 * MIB + 5);
    }
    OK(stn_close(ring, checkpoint));
    OK(stn_open(ring, "a@1", 0, &checkpoint, NULL));
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void registered_memory_is_a_buffer(void)
{
    struct stn_ring_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct pool pool;
    uint64_t checkpoint, i;
    stn_engine *engine;
    stn_ring *ring;
    uint32_t key;
    unsigned char *memory;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (test_has_files() ? 0 : MAP_HUGETLB);
    memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    CLEAR(opts);
    opts.flags = STN_RING_NO_MEMORY;
    OK(stn_ring_create(engine, &opts, &ring));
    for (i = 0; i < 4 * MIB; i++)
        memory[i] = pattern(i);
    OK(stn_mem_register(ring, memory, 4 * MIB, &key));
    checkpoint = begin(ring, "own@1", 4 * MIB);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 4 * MIB, 0);
    cqe = ring_run(ring, &sqe);
    CHECK(cqe.result == (int64_t)(4 * MIB));
    commit(ring, checkpoint);
    OK(stn_close(ring, checkpoint));
    memset(memory, 0, 4 * MIB);
    OK(stn_open(ring, "own@1", 0, &checkpoint, NULL));
    sqe.opcode = STN_OP_READ;
    sqe.checkpoint = checkpoint;
    cqe = ring_run(ring, &sqe);
    CHECK(cqe.result == (int64_t)(4 * MIB));
    check_pattern(memory, 0, 4 * MIB);
    OK(stn_mem_unregister(ring, key));
    CHECK(munmap(memory, 4 * MIB) == 0);
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void the_eventfd_follows_the_completions(void)
{
    struct stn_cqe cqes[8];
    struct stn_sqe sqes[3];
    struct pollfd poller;
    struct pool pool;
    stn_engine *engine;
    stn_ring *ring;
    int round, taken;
    memset(sqes, 0, sizeof(sqes));
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    poller.fd = (int)OK(stn_ring_eventfd(ring));
    poller.events = POLLIN;
    CHECK(stn_ring_eventfd(ring) == poller.fd);
    CHECK(poll(&poller, 1, 0) == 0);
    for (round = 0; round < 200; round++) {
        CHECK(OK(stn_submit(ring, sqes, 3)) == 3);
        for (taken = 0; taken < 3;) {
            CHECK(poll(&poller, 1, 30000) == 1);
            taken += (int)OK(stn_peek(ring, cqes, 1));
        }
        while (poll(&poller, 1, 0) == 1)
            CHECK(OK(stn_peek(ring, cqes, 8)) == 0);
    }
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

/* The library leaves signals to the program. */
static void signals_are_the_programs(void)
{
    struct sigaction before[65], after;
    sigset_t mask_before, mask_after;
    struct pool pool;
    stn_engine *engine;
    int number;
    memset(before, 0, sizeof(before));
    for (number = 1; number < 65; number++)
        sigaction(number, NULL, &before[number]);
    sigprocmask(SIG_SETMASK, NULL, &mask_before);
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    OK(stn_engine_close(engine));
    sigprocmask(SIG_SETMASK, NULL, &mask_after);
    for (number = 1; number < 65; number++) {
        memset(&after, 0, sizeof(after));
        sigaction(number, NULL, &after);
        CHECK(after.sa_handler == before[number].sa_handler);
        CHECK(sigismember(&mask_before, number) == sigismember(&mask_after, number));
    }
    pool_remove(&pool);
}

static const struct test tests[] = {
    {"versions", versions},
    {"words_for_errors", words_for_errors},
    {"log_records_come_until_they_are_stopped", log_records_come_until_they_are_stopped},
    {"facts_about_a_pool", facts_about_a_pool},
    {"a_checkpoint_is_saved_listed_and_restored", a_checkpoint_is_saved_listed_and_restored},
    {"a_segment_is_read_through_a_ring", a_segment_is_read_through_a_ring},
    {"registered_memory_is_a_buffer", registered_memory_is_a_buffer},
    {"the_eventfd_follows_the_completions", the_eventfd_follows_the_completions},
    {"signals_are_the_programs", signals_are_the_programs},
};

TEST_MAIN(tests)
