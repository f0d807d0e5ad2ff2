/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program must not do, and does: each has its documented error; nothing hangs or crashes. */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Handles and arguments for a call of each function. */
struct arguments {
    stn_engine *engine;
    stn_ring *ring;
    stn_list *list;
    stn_checkpoint *checkpoint;
};

/* Every function that takes a handle, with arguments that are right otherwise. */
#define EACH_ENGINE_CALL(error, a) \
    do { \
        struct stn_pool_info pool_info; \
        struct stn_drive_info drive_info; \
        struct stn_checkpoint_info info; \
        struct stn_restore_opts restore; \
        stn_list *list; \
        stn_checkpoint *checkpoint; \
        stn_ring *ring; \
        char byte; \
        CLEAR(pool_info); \
        CLEAR(drive_info); \
        CLEAR(info); \
        CLEAR(restore); \
        restore.name = "a@1"; \
        ERR(error, stn_pool_info((a)->engine, &pool_info)); \
        ERR(error, stn_drive_info((a)->engine, 0, &drive_info)); \
        ERR(error, stn_list_create((a)->engine, &list)); \
        ERR(error, stn_latest((a)->engine, "a", &info)); \
        ERR(error, stn_remove((a)->engine, "nothing@1")); \
        ERR(error, stn_checkpoint_show((a)->engine, "a@1", &checkpoint)); \
        ERR(error, stn_restore((a)->engine, &restore, &byte, 1)); \
        ERR(error, stn_ring_create((a)->engine, NULL, &ring)); \
    } while (0)

#define EACH_RING_CALL(error, a) \
    do { \
        struct stn_begin_opts begin_opts; \
        struct stn_sqe sqe; \
        struct stn_cqe cqe; \
        uint64_t handle; \
        uint32_t key; \
        void *memory; \
        CLEAR(begin_opts); \
        begin_opts.name = "b@1"; \
        begin_opts.len_bytes = 1; \
        memset(&sqe, 0, sizeof(sqe)); \
        ERR(error, stn_ring_eventfd((a)->ring)); \
        ERR(error, stn_submit((a)->ring, &sqe, 1)); \
        ERR(error, stn_peek((a)->ring, &cqe, 1)); \
        ERR(error, stn_wait((a)->ring, &cqe, 0, 1, 0)); \
        ERR(error, stn_buf_alloc((a)->ring, 4096, &memory, &key)); \
        ERR(error, stn_buf_free((a)->ring, 1)); \
        ERR(error, stn_mem_register((a)->ring, page, sizeof(page), &key)); \
        ERR(error, stn_mem_unregister((a)->ring, 1)); \
        ERR(error, stn_begin((a)->ring, &begin_opts, &handle)); \
        ERR(error, stn_open((a)->ring, "a@1", 0, &handle, NULL)); \
        ERR(error, stn_close((a)->ring, 1)); \
    } while (0)

#define EACH_SNAPSHOT_CALL(error, a) \
    do { \
        struct stn_checkpoint_info info; \
        struct stn_segment_info segment; \
        struct stn_shard_info shard; \
        CLEAR(info); \
        CLEAR(segment); \
        CLEAR(shard); \
        ERR(error, stn_list_count((a)->list)); \
        ERR(error, stn_list_get((a)->list, 0, &info)); \
        ERR(error, stn_checkpoint_get((a)->checkpoint, &info)); \
        ERR(error, stn_checkpoint_segment((a)->checkpoint, 0, &segment)); \
        ERR(error, stn_checkpoint_shard((a)->checkpoint, 0, 0, &shard)); \
        ERR(error, stn_checkpoint_find((a)->checkpoint, 0, "head", &shard)); \
    } while (0)

#define EACH_END(error, a) \
    do { \
        ERR(error, stn_list_free((a)->list)); \
        ERR(error, stn_checkpoint_free((a)->checkpoint)); \
        ERR(error, stn_ring_destroy((a)->ring)); \
        ERR(error, stn_engine_close((a)->engine)); \
    } while (0)

static char page[4096] __attribute__((aligned(4096)));

static void make(struct pool *pool, struct arguments *a)
{
    pool_make(pool, 1);
    a->engine = pool_open(pool);
    a->ring = ring_make(a->engine);
    save(a->ring, "a@1", 100000);
    OK(stn_list_create(a->engine, &a->list));
    OK(stn_checkpoint_show(a->engine, "a@1", &a->checkpoint));
}

static void end(struct pool *pool, struct arguments *a)
{
    OK(stn_list_free(a->list));
    OK(stn_checkpoint_free(a->checkpoint));
    OK(stn_ring_destroy(a->ring));
    OK(stn_engine_close(a->engine));
    pool_remove(pool);
}

static void each_call(int fault, struct arguments *a)
{
    if (fault == EFAULT) {
        EACH_ENGINE_CALL(EFAULT, a);
        EACH_RING_CALL(EFAULT, a);
        EACH_SNAPSHOT_CALL(EFAULT, a);
        EACH_END(EFAULT, a);
    } else if (fault == EBADF) {
        EACH_ENGINE_CALL(EBADF, a);
        EACH_RING_CALL(EBADF, a);
        EACH_SNAPSHOT_CALL(EBADF, a);
        EACH_END(EBADF, a);
    } else {
        EACH_ENGINE_CALL(EOWNERDEAD, a);
        EACH_RING_CALL(EOWNERDEAD, a);
        EACH_SNAPSHOT_CALL(EOWNERDEAD, a);
        EACH_END(EOWNERDEAD, a);
    }
}

static void null_handles(void)
{
    struct arguments none;
    memset(&none, 0, sizeof(none));
    each_call(EFAULT, &none);
}

static void null_arguments(void)
{
    struct stn_engine_opts engine_opts;
    struct stn_format_opts format_opts;
    struct stn_begin_opts begin_opts;
    struct stn_restore_opts restore;
    struct stn_segment_info segment;
    struct stn_shard shard;
    const char *null_drive[1] = {NULL};
    struct arguments a;
    struct pool pool;
    stn_engine *engine;
    uint64_t handle;
    uint32_t key;
    void *memory;
    char byte;

    ERR(EFAULT, stn_format(NULL));
    CLEAR(format_opts);
    format_opts.drive_count = 1;
    ERR(EFAULT, stn_format(&format_opts));
    format_opts.drives = null_drive;
    ERR(EFAULT, stn_format(&format_opts));
    make(&pool, &a);
    ERR(EFAULT, stn_engine_open(NULL, &engine));
    pool_opts(&pool, &engine_opts);
    ERR(EFAULT, stn_engine_open(&engine_opts, NULL));
    engine_opts.core_count = 1;
    ERR(EFAULT, stn_engine_open(&engine_opts, &engine));
    engine_opts.core_count = 0;
    engine_opts.drives = NULL;
    ERR(EFAULT, stn_engine_open(&engine_opts, &engine));
    ERR(EFAULT, stn_pool_info(a.engine, NULL));
    ERR(EFAULT, stn_drive_info(a.engine, 0, NULL));
    ERR(EFAULT, stn_list_create(a.engine, NULL));
    ERR(EFAULT, stn_list_get(a.list, 0, NULL));
    ERR(EFAULT, stn_latest(a.engine, "a", NULL));
    {
        struct stn_checkpoint_info info;
        CLEAR(info);
        ERR(EFAULT, stn_latest(a.engine, NULL, &info));
    }
    ERR(EFAULT, stn_remove(a.engine, NULL));
    ERR(EFAULT, stn_checkpoint_show(a.engine, NULL, &a.checkpoint));
    ERR(EFAULT, stn_checkpoint_show(a.engine, "a@1", NULL));
    ERR(EFAULT, stn_checkpoint_get(a.checkpoint, NULL));
    ERR(EFAULT, stn_checkpoint_segment(a.checkpoint, 0, NULL));
    ERR(EFAULT, stn_checkpoint_shard(a.checkpoint, 0, 0, NULL));
    ERR(EFAULT, stn_checkpoint_find(a.checkpoint, 0, "head", NULL));
    {
        struct stn_shard_info info;
        CLEAR(info);
        ERR(EFAULT, stn_checkpoint_find(a.checkpoint, 0, NULL, &info));
    }
    CLEAR(restore);
    ERR(EFAULT, stn_restore(a.engine, &restore, &byte, 1));
    restore.name = "a@1";
    ERR(EFAULT, stn_restore(a.engine, &restore, NULL, 1));
    ERR(EFAULT, stn_restore(a.engine, NULL, &byte, 1));
    ERR(EFAULT, stn_ring_create(a.engine, NULL, NULL));
    ERR(EFAULT, stn_submit(a.ring, NULL, 1));
    OK(stn_submit(a.ring, NULL, 0));
    ERR(EFAULT, stn_peek(a.ring, NULL, 1));
    OK(stn_peek(a.ring, NULL, 0));
    ERR(EFAULT, stn_wait(a.ring, NULL, 0, 1, 0));
    OK(stn_wait(a.ring, NULL, 0, 0, 0));
    ERR(EFAULT, stn_buf_alloc(a.ring, 1, NULL, &key));
    ERR(EFAULT, stn_buf_alloc(a.ring, 1, &memory, NULL));
    ERR(EFAULT, stn_mem_register(a.ring, NULL, 4096, &key));
    ERR(EFAULT, stn_mem_register(a.ring, page, 4096, NULL));
    ERR(EFAULT, stn_begin(a.ring, NULL, &handle));
    CLEAR(begin_opts);
    begin_opts.len_bytes = 1;
    ERR(EFAULT, stn_begin(a.ring, &begin_opts, &handle));
    begin_opts.name = "b@1";
    ERR(EFAULT, stn_begin(a.ring, &begin_opts, NULL));
    begin_opts.shard_count = 1;
    begin_opts.shard_size = sizeof(shard);
    ERR(EFAULT, stn_begin(a.ring, &begin_opts, &handle));
    memset(&shard, 0, sizeof(shard));
    begin_opts.shards = &shard;
    ERR(EFAULT, stn_begin(a.ring, &begin_opts, &handle));
    shard.name = "s";
    shard.dimensions = 1;
    ERR(EFAULT, stn_begin(a.ring, &begin_opts, &handle));
    CLEAR(segment);
    ERR(EFAULT, stn_open(a.ring, NULL, 0, &handle, &segment));
    ERR(EFAULT, stn_open(a.ring, "a@1", 0, NULL, &segment));
    end(&pool, &a);
}

static void closed_handles(void)
{
    struct arguments a;
    struct pool pool;
    int i;
    make(&pool, &a);
    end(&pool, &a);
    for (i = 0; i < 2; i++)
        each_call(EBADF, &a);
    /* Others may be in their places by now. */
    {
        struct arguments again;
        make(&pool, &again);
        each_call(EBADF, &a);
        end(&pool, &again);
    }
}

static void garbage_handles(void)
{
    struct arguments a;
    struct pool pool;
    make(&pool, &a);
    {
        /* Each kind in the place of another, and an address of something else. */
        struct stn_pool_info info;
        struct stn_cqe cqe;
        CLEAR(info);
        ERR(EBADF, stn_pool_info((stn_engine *)a.ring, &info));
        ERR(EBADF, stn_peek((stn_ring *)a.engine, &cqe, 1));
        ERR(EBADF, stn_list_count((stn_list *)a.checkpoint));
        ERR(EBADF, stn_peek((stn_ring *)&cqe, &cqe, 1));
        ERR(EBADF, stn_ring_destroy((stn_ring *)page));
    }
    end(&pool, &a);
}

static void a_forked_childs_handles(void)
{
    struct arguments a;
    struct pool pool;
    int status;
    pid_t child;
    make(&pool, &a);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        each_call(EOWNERDEAD, &a);
        /* valgrind does not know that a child has no mapping of its parent's io_uring. */
        if (test_has_files() && !test_is_instrumented()) {
            /* The child opens an engine of its own. */
            struct pool own;
            stn_engine *engine;
            pool_make(&own, 1);
            engine = pool_open(&own);
            save(ring_make(engine), "child@1", 5000);
            ERR(EBUSY, stn_engine_close(engine));
            ERR(EOWNERDEAD, stn_list_count(a.list));
            pool_remove(&own);
        }
        /* By exec, so that valgrind does not look for what the parent's threads still hold. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(OK(stn_list_count(a.list)) == 1);
    save(a.ring, "a@2", 100000);
    end(&pool, &a);
}

/* A data loader that was forked, say, and lives on. */
static void a_forked_child_does_not_keep_the_pool(void)
{
    struct arguments a;
    struct pool pool;
    stn_engine *engine;
    pid_t child;
    make(&pool, &a);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    OK(stn_list_free(a.list));
    OK(stn_checkpoint_free(a.checkpoint));
    OK(stn_ring_destroy(a.ring));
    OK(stn_engine_close(a.engine));
    engine = pool_open(&pool);
    OK(stn_engine_close(engine));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    pool_remove(&pool);
}

static void an_engine_with_rings_stays_open(void)
{
    struct arguments a;
    struct pool pool;
    struct stn_pool_info info;
    make(&pool, &a);
    ERR(EBUSY, stn_engine_close(a.engine));
    CLEAR(info);
    OK(stn_pool_info(a.engine, &info));
    end(&pool, &a);
}

static void a_buffer_in_flight_is_kept(void)
{
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct arguments a;
    struct pool pool;
    uint64_t checkpoint;
    uint32_t key, own = 0;
    void *memory;
    make(&pool, &a);
    checkpoint = begin(a.ring, "b@1", 2 * MIB);
    OK(stn_buf_alloc(a.ring, MIB, &memory, &key));
    memset(memory, 1, MIB);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, MIB, 0);
    CHECK(OK(stn_submit(a.ring, &sqe, 1)) == 1);
    ERR(EBUSY, stn_buf_free(a.ring, key));
    usleep(200000);
    ERR(EBUSY, stn_buf_free(a.ring, key)); /* its completion is there, but was not taken */
    CHECK(OK(stn_wait(a.ring, &cqe, 1, 1, -1)) == 1 && cqe.result == (int64_t)MIB);
    ERR(EBADF, stn_mem_unregister(a.ring, key)); /* not of that kind */
    OK(stn_buf_free(a.ring, key));
    ERR(EBADF, stn_buf_free(a.ring, key));
    if (test_has_files()) {
        OK(stn_mem_register(a.ring, page, sizeof(page), &own));
        OK(stn_close(a.ring, checkpoint));
        checkpoint = begin(a.ring, "c@1", 4096);
        sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, own, 4096, 0);
        CHECK(OK(stn_submit(a.ring, &sqe, 1)) == 1);
        ERR(EBUSY, stn_mem_unregister(a.ring, own));
        CHECK(OK(stn_wait(a.ring, &cqe, 1, 1, -1)) == 1 && cqe.result == 4096);
        ERR(EBADF, stn_buf_free(a.ring, own));
        OK(stn_mem_unregister(a.ring, own));
        ERR(EBADF, stn_mem_unregister(a.ring, own));
        /* The key means nothing any more. */
        sqe.segment_offset_bytes = 0;
        cqe = ring_run(a.ring, &sqe);
        CQE_ERR(EBADF, &cqe);
    }
    end(&pool, &a);
}

struct waiter {
    stn_ring *ring;
    int result;
};

/* Waits for a completion that comes when the other participant has gone. */
static void *wait_long(void *context)
{
    struct waiter *waiter = context;
    struct stn_cqe cqe;
    waiter->result = stn_wait(waiter->ring, &cqe, 1, 1, -1);
    CQE_ERR(ECANCELED, &cqe);
    return NULL;
}

static void a_ring_has_one_thread_at_a_time(void)
{
    struct stn_begin_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct waiter waiter;
    struct arguments a;
    struct pool pool;
    uint64_t mine, others;
    stn_ring *other;
    pthread_t thread;
    uint32_t key;
    void *memory;
    make(&pool, &a);
    other = ring_make(a.engine);
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.len_bytes = 4096;
    OK(stn_begin(a.ring, &opts, &mine));
    opts.participant = 1;
    OK(stn_begin(other, &opts, &others));
    OK(stn_buf_alloc(a.ring, 4096, &memory, &key));
    sqe_transfer(&sqe, STN_OP_WRITE, mine, key, 4096, 0);
    cqe = ring_run(a.ring, &sqe);
    CHECK(cqe.result == 4096);
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_COMMIT;
    sqe.checkpoint = mine;
    CHECK(OK(stn_submit(a.ring, &sqe, 1)) == 1);
    waiter.ring = a.ring;
    waiter.result = -1;
    CHECK(pthread_create(&thread, NULL, wait_long, &waiter) == 0);
    usleep(200000); /* now it waits */
    EACH_RING_CALL(EBUSY, &a);
    ERR(EBUSY, stn_ring_destroy(a.ring));
    OK(stn_ring_destroy(other));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(waiter.result == 1);
    end(&pool, &a);
}

static volatile int hammer_on;

static void *hammer_close(void *engine)
{
    while (hammer_on)
        stn_engine_close(engine);
    return NULL;
}

/* Repeats a call until it meets the other thread inside stn_engine_close(). */
#define MEET(call) \
    do { \
        long tries; \
        for (tries = 0; (call) != -EBUSY; tries++) \
            CHECK(tries < 100000000); \
        test_error(__FILE__, __LINE__, #call, "EBUSY", EBUSY, -EBUSY); \
    } while (0)

static void an_engine_that_is_being_closed(void)
{
    struct arguments a;
    struct pool pool;
    pthread_t thread;
    if (test_is_instrumented())
        return;
    make(&pool, &a);
    hammer_on = 1;
    CHECK(pthread_create(&thread, NULL, hammer_close, a.engine) == 0);
    MEET(stn_pool_info(a.engine, NULL));
    MEET(stn_drive_info(a.engine, 0, NULL));
    MEET(stn_list_create(a.engine, NULL));
    MEET(stn_latest(a.engine, "a", NULL));
    MEET(stn_remove(a.engine, NULL));
    MEET(stn_checkpoint_show(a.engine, "a@1", NULL));
    MEET(stn_restore(a.engine, NULL, NULL, 0));
    MEET(stn_ring_create(a.engine, NULL, NULL));
    hammer_on = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    end(&pool, &a);
}

static void *hammer_snapshots(void *context)
{
    struct arguments *a = context;
    struct stn_checkpoint_info info;
    CLEAR(info);
    while (hammer_on) {
        stn_list_get(a->list, 0, &info);
        stn_checkpoint_get(a->checkpoint, &info);
    }
    return NULL;
}

static void a_snapshot_that_is_being_used(void)
{
    struct arguments a;
    struct pool pool;
    pthread_t thread;
    int list_busy = 0, checkpoint_busy = 0;
    if (test_is_instrumented())
        return;
    make(&pool, &a);
    while (!list_busy || !checkpoint_busy) {
        hammer_on = 1;
        CHECK(pthread_create(&thread, NULL, hammer_snapshots, &a) == 0);
        usleep(1000);
        if (!list_busy && stn_list_free(a.list) == -EBUSY)
            list_busy = 1;
        if (!checkpoint_busy && stn_checkpoint_free(a.checkpoint) == -EBUSY)
            checkpoint_busy = 1;
        hammer_on = 0;
        CHECK(pthread_join(thread, NULL) == 0);
        if (stn_list_count(a.list) < 0)
            OK(stn_list_create(a.engine, &a.list));
        {
            struct stn_checkpoint_info info;
            CLEAR(info);
            if (stn_checkpoint_get(a.checkpoint, &info) < 0)
                OK(stn_checkpoint_show(a.engine, "a@1", &a.checkpoint));
        }
    }
    test_error(__FILE__, __LINE__, "stn_list_free(", "EBUSY", EBUSY, -EBUSY);
    test_error(__FILE__, __LINE__, "stn_checkpoint_free(", "EBUSY", EBUSY, -EBUSY);
    end(&pool, &a);
}

static void wait_after_destroy(void)
{
    struct arguments a;
    struct stn_cqe cqe;
    struct stn_sqe sqe;
    struct pool pool;
    stn_ring *ring;
    make(&pool, &a);
    ring = ring_make(a.engine);
    memset(&sqe, 0, sizeof(sqe));
    CHECK(OK(stn_submit(ring, &sqe, 1)) == 1);
    OK(stn_ring_destroy(ring));
    ERR(EBADF, stn_wait(ring, &cqe, 1, 1, -1));
    ERR(EBADF, stn_ring_destroy(ring));
    end(&pool, &a);
}

static void a_wait_that_would_never_end(void)
{
    struct arguments a;
    struct stn_cqe cqes[2];
    struct stn_sqe sqe;
    struct pool pool;
    make(&pool, &a);
    ERR(ENODATA, stn_wait(a.ring, cqes, 1, 1, -1));
    memset(&sqe, 0, sizeof(sqe));
    CHECK(OK(stn_submit(a.ring, &sqe, 1)) == 1);
    ERR(ENODATA, stn_wait(a.ring, cqes, 2, 2, -1));
    ERR(EINVAL, stn_wait(a.ring, cqes, 2, 1, -1));
    CHECK(OK(stn_wait(a.ring, cqes, 1, 2, -1)) == 1);
    end(&pool, &a);
}

static void a_wait_that_ends_by_time(void)
{
    struct stn_begin_opts opts;
    struct arguments a;
    struct stn_sqe sqes[2];
    struct stn_cqe cqes[2];
    struct pool pool;
    uint64_t checkpoint;
    uint32_t key;
    void *memory;
    make(&pool, &a);
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.len_bytes = 4096;
    OK(stn_begin(a.ring, &opts, &checkpoint));
    OK(stn_buf_alloc(a.ring, 4096, &memory, &key));
    sqe_transfer(&sqes[0], STN_OP_WRITE, checkpoint, key, 4096, 0);
    memset(&sqes[1], 0, sizeof(sqes[1]));
    sqes[1].opcode = STN_OP_COMMIT;
    sqes[1].checkpoint = checkpoint;
    CHECK(OK(stn_submit(a.ring, sqes, 2)) == 2);
    /* The write completes, the commit waits for the other participant. */
    CHECK(OK(stn_wait(a.ring, cqes, 2, 2, test_is_instrumented() ? 30000000000 : 2000000000)) == 1);
    ERR(ETIME, stn_wait(a.ring, cqes, 1, 1, 1000000));
    ERR(ETIME, stn_wait(a.ring, cqes, 1, 1, 0));
    end(&pool, &a);
}

static void entries_that_are_wrong(void)
{
    struct arguments a;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct pool pool;
    uint64_t checkpoint, others;
    stn_ring *other;
    uint32_t key, others_key;
    void *memory;
    make(&pool, &a);
    other = ring_make(a.engine);
    others = begin(other, "other@1", MIB);
    OK(stn_buf_alloc(other, MIB, &memory, &others_key));
    checkpoint = begin(a.ring, "mine@1", 4 * MIB);
    OK(stn_buf_alloc(a.ring, 2 * MIB, &memory, &key));
#define WRONG(error, change) \
    do { \
        sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, MIB, 0); \
        change; \
        cqe = ring_run(a.ring, &sqe); \
        CQE_ERR(error, &cqe); \
    } while (0)
    WRONG(EBADF, sqe.buffer = others_key);
    WRONG(EBADF, sqe.buffer = 0);
    WRONG(EBADF, sqe.checkpoint = others);
    WRONG(EBADF, sqe.checkpoint = 0);
    WRONG(EBADF, sqe.opcode = STN_OP_READ);
    WRONG(EINVAL, sqe.opcode = STN_OP_ABORT + 1);
    WRONG(EINVAL, sqe.flags = 1);
    WRONG(EINVAL, sqe.reserved0 = 1);
    WRONG(EINVAL, sqe.reserved1[0] = 1);
    WRONG(EINVAL, sqe.reserved1[1] = 1);
    WRONG(EINVAL, sqe.len_bytes = 0);
    WRONG(EINVAL, sqe.len_bytes = MIB - 1);
    WRONG(EINVAL, sqe.buffer_offset_bytes = 1);
    WRONG(EINVAL, sqe.segment_offset_bytes = 4097);
    WRONG(ERANGE, sqe.segment_offset_bytes = UINT64_MAX - 4095);
    WRONG(ERANGE, sqe.buffer_offset_bytes = UINT64_MAX - 4095);
    WRONG(ERANGE, sqe.len_bytes = UINT64_MAX);
    WRONG(ERANGE, sqe.segment_offset_bytes = 4 * MIB);
    WRONG(ERANGE, sqe.buffer_offset_bytes = 2 * MIB);
    WRONG(ERANGE, sqe.len_bytes = 3 * MIB);
    WRONG(EINVAL, (memset(&sqe, 0, sizeof(sqe)), sqe.buffer = key));
    WRONG(STN_E_INCOMPLETE,
          (memset(&sqe, 0, sizeof(sqe)), sqe.opcode = STN_OP_COMMIT, sqe.checkpoint = checkpoint));
    CHECK(cqe.aux > 0);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 2 * MIB, 0);
    cqe = ring_run(a.ring, &sqe);
    CHECK(cqe.result == (int64_t)(2 * MIB));
    WRONG(EEXIST, (void)0);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 2 * MIB, 2 * MIB);
    cqe = ring_run(a.ring, &sqe);
    CHECK(cqe.result == (int64_t)(2 * MIB));
    commit(a.ring, checkpoint);
    WRONG(EBADF, (void)0); /* it is committed */
    OK(stn_ring_destroy(other));
    end(&pool, &a);
}

static void a_checkpoint_that_is_given_up(void)
{
    struct arguments a;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct stn_checkpoint_info info;
    struct pool pool;
    uint64_t checkpoint;
    make(&pool, &a);
    checkpoint = begin(a.ring, "gone@1", MIB);
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_ABORT;
    sqe.checkpoint = checkpoint;
    cqe = ring_run(a.ring, &sqe);
    CHECK(cqe.result == 0);
    cqe = ring_run(a.ring, &sqe);
    CQE_ERR(EBADF, &cqe);
    OK(stn_close(a.ring, checkpoint));
    ERR(EBADF, stn_close(a.ring, checkpoint));
    CLEAR(info);
    ERR(ENOENT, stn_latest(a.engine, "gone", &info));
    end(&pool, &a);
}

static void a_ring_of_one_entry(void)
{
    struct stn_ring_opts opts;
    struct stn_sqe sqes[8];
    struct stn_cqe cqes[8];
    struct arguments a;
    struct pool pool;
    stn_ring *ring;
    int round, done;
    make(&pool, &a);
    CLEAR(opts);
    opts.entries = 1;
    opts.flags = STN_RING_NO_MEMORY;
    OK(stn_ring_create(a.engine, &opts, &ring));
    memset(sqes, 0, sizeof(sqes));
    for (round = 0; round < 1000; round++) {
        CHECK(OK(stn_submit(ring, sqes, 8)) == 1);
        for (done = 0; done == 0;)
            done = (int)OK(stn_peek(ring, cqes, 8));
        CHECK(done == 1);
    }
    OK(stn_ring_destroy(ring));
    end(&pool, &a);
}

static void a_full_ring(void)
{
    struct stn_ring_opts opts;
    struct stn_sqe sqes[64];
    struct stn_cqe cqes[64];
    struct arguments a;
    struct pool pool;
    stn_ring *ring;
    int64_t accepted = 0;
    int i, round;
    make(&pool, &a);
    CLEAR(opts);
    opts.entries = 16;
    OK(stn_ring_create(a.engine, &opts, &ring));
    memset(sqes, 0, sizeof(sqes));
    /* Nothing is taken: twice the entries may be outstanding, and no more. */
    for (i = 0; i < 1000 && accepted < 32; i++) {
        accepted += OK(stn_submit(ring, sqes, 64));
        usleep(1000);
    }
    CHECK(accepted == 32);
    CHECK(OK(stn_submit(ring, sqes, 64)) == 0);
    CHECK(OK(stn_wait(ring, cqes, 32, 64, -1)) == 32);
    for (round = 0; round < 100; round++) {
        int64_t in = OK(stn_submit(ring, sqes, 64)), out = 0;
        CHECK(in >= 16 && in <= 32);
        while (out < in)
            out += OK(stn_wait(ring, cqes, 1, 64, -1));
        CHECK(out == in);
    }
    OK(stn_ring_destroy(ring));
    end(&pool, &a);
}

struct worker {
    stn_engine *engine;
    int number;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct stn_ring_opts opts;
    stn_ring *ring;
    char name[32];
    int step;
    CLEAR(opts);
    opts.memory_bytes = 2 * MIB;
    opts.entries = 8;
    OK(stn_ring_create(worker->engine, &opts, &ring));
    for (step = 0; step < 3; step++) {
        snprintf(name, sizeof(name), "worker%d@%d", worker->number, step);
        save(ring, name, 20000);
        if (step > 0) {
            snprintf(name, sizeof(name), "worker%d@%d", worker->number, step - 1);
            OK(stn_remove(worker->engine, name));
        }
    }
    OK(stn_ring_destroy(ring));
    return NULL;
}

static void sixty_four_rings_on_sixty_four_threads(void)
{
    struct worker workers[64];
    pthread_t threads[64];
    stn_engine *engine;
    stn_list *list;
    struct pool pool;
    int i;
    /* Small chunks, and drives on which that many checkpoints have room. */
    pool_make_sized(&pool, 2, 320 * MIB, 65536);
    engine = pool_open(&pool);
    for (i = 0; i < 64; i++) {
        workers[i].engine = engine;
        workers[i].number = i;
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (i = 0; i < 64; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(stn_list_create(engine, &list));
    CHECK(OK(stn_list_count(list)) == 64);
    OK(stn_list_free(list));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static const struct test tests[] = {
    {"null_handles", null_handles},
    {"null_arguments", null_arguments},
    {"closed_handles", closed_handles},
    {"garbage_handles", garbage_handles},
    {"a_forked_childs_handles", a_forked_childs_handles},
    {"a_forked_child_does_not_keep_the_pool", a_forked_child_does_not_keep_the_pool},
    {"an_engine_with_rings_stays_open", an_engine_with_rings_stays_open},
    {"a_buffer_in_flight_is_kept", a_buffer_in_flight_is_kept},
    {"a_ring_has_one_thread_at_a_time", a_ring_has_one_thread_at_a_time},
    {"an_engine_that_is_being_closed", an_engine_that_is_being_closed},
    {"a_snapshot_that_is_being_used", a_snapshot_that_is_being_used},
    {"wait_after_destroy", wait_after_destroy},
    {"a_wait_that_would_never_end", a_wait_that_would_never_end},
    {"a_wait_that_ends_by_time", a_wait_that_ends_by_time},
    {"entries_that_are_wrong", entries_that_are_wrong},
    {"a_checkpoint_that_is_given_up", a_checkpoint_that_is_given_up},
    {"a_ring_of_one_entry", a_ring_of_one_entry},
    {"a_full_ring", a_full_ring},
    {"sixty_four_rings_on_sixty_four_threads", sixty_four_rings_on_sixty_four_threads},
};

TEST_MAIN(tests)
