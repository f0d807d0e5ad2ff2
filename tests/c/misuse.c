/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program must not do: each has its documented error; nothing hangs or crashes. */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Handles and arguments for a call of each function. */
struct arguments {
    stn_pool *pool;
    stn_session *session;
    stn_list *list;
    stn_checkpoint *checkpoint;
};

/* Every function that takes a handle, with arguments that are right otherwise. */
#define EACH_POOL_CALL(error, a) \
    do { \
        struct stn_pool_info pool_info; \
        struct stn_drive_info drive_info; \
        struct stn_checkpoint_info info; \
        struct stn_restore_opts restore; \
        struct stn_save_opts save_opts; \
        stn_list *list; \
        stn_checkpoint *checkpoint; \
        stn_session *session; \
        char byte; \
        CLEAR(pool_info); \
        CLEAR(drive_info); \
        CLEAR(info); \
        CLEAR(restore); \
        CLEAR(save_opts); \
        save_opts.name = "c@1"; \
        restore.name = "a@1"; \
        ERR(error, stn_pool_info((a)->pool, &pool_info)); \
        ERR(error, stn_drive_info((a)->pool, 0, &drive_info)); \
        ERR(error, stn_list_create((a)->pool, &list)); \
        ERR(error, stn_latest((a)->pool, "a", &info)); \
        ERR(error, stn_remove((a)->pool, "nothing@1")); \
        ERR(error, stn_checkpoint_show((a)->pool, "a@1", &checkpoint)); \
        ERR(error, stn_save((a)->pool, &save_opts)); \
        ERR(error, stn_restore((a)->pool, &restore, &byte, 1)); \
        ERR(error, stn_session_create((a)->pool, NULL, &session)); \
    } while (0)

#define EACH_SESSION_CALL(error, a) \
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
        ERR(error, stn_session_eventfd((a)->session)); \
        ERR(error, stn_submit((a)->session, &sqe, 1)); \
        ERR(error, stn_peek((a)->session, &cqe, 1)); \
        ERR(error, stn_wait((a)->session, &cqe, 0, 1, 0)); \
        ERR(error, stn_buf_alloc((a)->session, 4096, &memory, &key)); \
        ERR(error, stn_buf_free((a)->session, 1)); \
        ERR(error, stn_mem_register((a)->session, page, sizeof(page), &key)); \
        ERR(error, stn_mem_unregister((a)->session, 1)); \
        ERR(error, stn_begin((a)->session, &begin_opts, &handle)); \
        ERR(error, stn_open((a)->session, "a@1", 0, &handle, NULL)); \
        ERR(error, stn_close((a)->session, 1)); \
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
        ERR(error, stn_session_destroy((a)->session)); \
        ERR(error, stn_pool_close((a)->pool)); \
    } while (0)

static char page[4096] __attribute__((aligned(4096)));

static void make(struct drives *drives, struct arguments *a)
{
    drives_make(drives, 1);
    a->pool = pool_open(drives);
    a->session = session_make(a->pool);
    save(a->session, "a@1", 100000);
    OK(stn_list_create(a->pool, &a->list));
    OK(stn_checkpoint_show(a->pool, "a@1", &a->checkpoint));
}

static void end(struct drives *drives, struct arguments *a)
{
    OK(stn_list_free(a->list));
    OK(stn_checkpoint_free(a->checkpoint));
    OK(stn_session_destroy(a->session));
    OK(stn_pool_close(a->pool));
    drives_remove(drives);
}

static void each_call(int fault, struct arguments *a)
{
    if (fault == EFAULT) {
        EACH_POOL_CALL(EFAULT, a);
        EACH_SESSION_CALL(EFAULT, a);
        EACH_SNAPSHOT_CALL(EFAULT, a);
        EACH_END(EFAULT, a);
    } else if (fault == EBADF) {
        EACH_POOL_CALL(EBADF, a);
        EACH_SESSION_CALL(EBADF, a);
        EACH_SNAPSHOT_CALL(EBADF, a);
        EACH_END(EBADF, a);
    } else {
        EACH_POOL_CALL(EOWNERDEAD, a);
        EACH_SESSION_CALL(EOWNERDEAD, a);
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
    struct stn_pool_opts pool_options;
    struct stn_format_opts format_opts;
    struct stn_begin_opts begin_opts;
    struct stn_restore_opts restore;
    struct stn_save_shard save_shard;
    struct stn_save_opts save_opts;
    struct stn_segment_info segment;
    struct stn_shard shard;
    const char *null_drive[1] = {NULL};
    struct arguments a;
    struct drives drives;
    stn_pool *pool;
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
    make(&drives, &a);
    ERR(EFAULT, stn_pool_open(NULL, &pool));
    pool_opts(&drives, &pool_options);
    ERR(EFAULT, stn_pool_open(&pool_options, NULL));
    pool_options.core_count = 1;
    ERR(EFAULT, stn_pool_open(&pool_options, &pool));
    pool_options.core_count = 0;
    pool_options.drives = NULL;
    ERR(EFAULT, stn_pool_open(&pool_options, &pool));
    ERR(EFAULT, stn_pool_info(a.pool, NULL));
    ERR(EFAULT, stn_drive_info(a.pool, 0, NULL));
    ERR(EFAULT, stn_list_create(a.pool, NULL));
    ERR(EFAULT, stn_list_get(a.list, 0, NULL));
    ERR(EFAULT, stn_latest(a.pool, "a", NULL));
    {
        struct stn_checkpoint_info info;
        CLEAR(info);
        ERR(EFAULT, stn_latest(a.pool, NULL, &info));
    }
    ERR(EFAULT, stn_remove(a.pool, NULL));
    ERR(EFAULT, stn_checkpoint_show(a.pool, NULL, &a.checkpoint));
    ERR(EFAULT, stn_checkpoint_show(a.pool, "a@1", NULL));
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
    ERR(EFAULT, stn_restore(a.pool, &restore, &byte, 1));
    restore.name = "a@1";
    ERR(EFAULT, stn_restore(a.pool, &restore, NULL, 1));
    ERR(EFAULT, stn_restore(a.pool, NULL, &byte, 1));
    ERR(EFAULT, stn_save(a.pool, NULL));
    CLEAR(save_opts);
    ERR(EFAULT, stn_save(a.pool, &save_opts));
    save_opts.name = "b@1";
    save_opts.shard_count = 1;
    save_opts.shard_size = sizeof(save_shard);
    ERR(EFAULT, stn_save(a.pool, &save_opts));
    memset(&save_shard, 0, sizeof(save_shard));
    save_opts.shards = &save_shard;
    ERR(EFAULT, stn_save(a.pool, &save_opts));
    save_shard.name = "s";
    save_shard.len_bytes = 1;
    ERR(EFAULT, stn_save(a.pool, &save_opts)); /* it has no bytes */
    save_shard.bytes = &byte;
    save_shard.dimensions = 1;
    ERR(EFAULT, stn_save(a.pool, &save_opts));
    ERR(EFAULT, stn_session_create(a.pool, NULL, NULL));
    ERR(EFAULT, stn_submit(a.session, NULL, 1));
    OK(stn_submit(a.session, NULL, 0));
    ERR(EFAULT, stn_peek(a.session, NULL, 1));
    OK(stn_peek(a.session, NULL, 0));
    ERR(EFAULT, stn_wait(a.session, NULL, 0, 1, 0));
    OK(stn_wait(a.session, NULL, 0, 0, 0));
    ERR(EFAULT, stn_buf_alloc(a.session, 1, NULL, &key));
    ERR(EFAULT, stn_buf_alloc(a.session, 1, &memory, NULL));
    ERR(EFAULT, stn_mem_register(a.session, NULL, 4096, &key));
    ERR(EFAULT, stn_mem_register(a.session, page, 4096, NULL));
    ERR(EFAULT, stn_begin(a.session, NULL, &handle));
    CLEAR(begin_opts);
    begin_opts.len_bytes = 1;
    ERR(EFAULT, stn_begin(a.session, &begin_opts, &handle));
    begin_opts.name = "b@1";
    ERR(EFAULT, stn_begin(a.session, &begin_opts, NULL));
    begin_opts.shard_count = 1;
    begin_opts.shard_size = sizeof(shard);
    ERR(EFAULT, stn_begin(a.session, &begin_opts, &handle));
    memset(&shard, 0, sizeof(shard));
    begin_opts.shards = &shard;
    ERR(EFAULT, stn_begin(a.session, &begin_opts, &handle));
    shard.name = "s";
    shard.dimensions = 1;
    ERR(EFAULT, stn_begin(a.session, &begin_opts, &handle));
    CLEAR(segment);
    ERR(EFAULT, stn_open(a.session, NULL, 0, &handle, &segment));
    ERR(EFAULT, stn_open(a.session, "a@1", 0, NULL, &segment));
    end(&drives, &a);
}

static void closed_handles(void)
{
    struct arguments a;
    struct drives drives;
    int i;
    make(&drives, &a);
    end(&drives, &a);
    for (i = 0; i < 2; i++)
        each_call(EBADF, &a);
    /* Others may be in their places by now. */
    {
        struct arguments again;
        make(&drives, &again);
        each_call(EBADF, &a);
        end(&drives, &again);
    }
}

static void garbage_handles(void)
{
    struct arguments a;
    struct drives drives;
    make(&drives, &a);
    {
        /* Each kind in the place of another, and an address of something else. */
        struct stn_pool_info info;
        struct stn_cqe cqe;
        CLEAR(info);
        ERR(EBADF, stn_pool_info((stn_pool *)a.session, &info));
        ERR(EBADF, stn_peek((stn_session *)a.pool, &cqe, 1));
        ERR(EBADF, stn_list_count((stn_list *)a.checkpoint));
        ERR(EBADF, stn_peek((stn_session *)&cqe, &cqe, 1));
        ERR(EBADF, stn_session_destroy((stn_session *)page));
    }
    end(&drives, &a);
}

static void a_forked_childs_handles(void)
{
    struct arguments a;
    struct drives drives;
    int status;
    pid_t child;
    make(&drives, &a);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        each_call(EOWNERDEAD, &a);
        /* valgrind does not know that a child has no mapping of its parent's io_uring. */
        if (test_has_files() && !test_is_instrumented()) {
            /* The child opens a pool of its own. */
            struct drives own;
            stn_pool *pool;
            drives_make(&own, 1);
            pool = pool_open(&own);
            save(session_make(pool), "child@1", 5000);
            ERR(EBUSY, stn_pool_close(pool));
            ERR(EOWNERDEAD, stn_list_count(a.list));
            drives_remove(&own);
        }
        /* By exec, so that valgrind does not look for what the parent's threads still hold. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(OK(stn_list_count(a.list)) == 1);
    save(a.session, "a@2", 100000);
    end(&drives, &a);
}

/* For example a forked data loader that outlives its parent. */
static void a_forked_child_does_not_keep_the_pool(void)
{
    struct arguments a;
    struct drives drives;
    stn_pool *pool;
    pid_t child;
    make(&drives, &a);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    OK(stn_list_free(a.list));
    OK(stn_checkpoint_free(a.checkpoint));
    OK(stn_session_destroy(a.session));
    OK(stn_pool_close(a.pool));
    pool = pool_open(&drives);
    OK(stn_pool_close(pool));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    drives_remove(&drives);
}

static void a_pool_with_sessions_stays_open(void)
{
    struct arguments a;
    struct drives drives;
    struct stn_pool_info info;
    make(&drives, &a);
    ERR(EBUSY, stn_pool_close(a.pool));
    CLEAR(info);
    OK(stn_pool_info(a.pool, &info));
    end(&drives, &a);
}

static void a_buffer_in_flight_is_kept(void)
{
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct arguments a;
    struct drives drives;
    uint64_t checkpoint;
    uint32_t key, own = 0;
    void *memory;
    make(&drives, &a);
    checkpoint = begin(a.session, "b@1", 2 * MIB);
    OK(stn_buf_alloc(a.session, MIB, &memory, &key));
    memset(memory, 1, MIB);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, MIB, 0);
    CHECK(OK(stn_submit(a.session, &sqe, 1)) == 1);
    ERR(EBUSY, stn_buf_free(a.session, key));
    usleep(200000);
    ERR(EBUSY, stn_buf_free(a.session, key)); /* its completion is there, but was not taken */
    CHECK(OK(stn_wait(a.session, &cqe, 1, 1, -1)) == 1 && cqe.result == (int64_t)MIB);
    ERR(EBADF, stn_mem_unregister(a.session, key)); /* not of that kind */
    OK(stn_buf_free(a.session, key));
    ERR(EBADF, stn_buf_free(a.session, key));
    if (test_has_files()) {
        OK(stn_mem_register(a.session, page, sizeof(page), &own));
        OK(stn_close(a.session, checkpoint));
        checkpoint = begin(a.session, "c@1", 4096);
        sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, own, 4096, 0);
        CHECK(OK(stn_submit(a.session, &sqe, 1)) == 1);
        ERR(EBUSY, stn_mem_unregister(a.session, own));
        CHECK(OK(stn_wait(a.session, &cqe, 1, 1, -1)) == 1 && cqe.result == 4096);
        ERR(EBADF, stn_buf_free(a.session, own));
        OK(stn_mem_unregister(a.session, own));
        ERR(EBADF, stn_mem_unregister(a.session, own));
        /* The key is invalid now. */
        sqe.segment_offset_bytes = 0;
        cqe = session_run(a.session, &sqe);
        CQE_ERR(EBADF, &cqe);
    }
    end(&drives, &a);
}

struct waiter {
    stn_session *session;
    int result;
};

/* Waits for a completion that comes when the other participant has gone. */
static void *wait_long(void *context)
{
    struct waiter *waiter = context;
    struct stn_cqe cqe;
    waiter->result = stn_wait(waiter->session, &cqe, 1, 1, -1);
    CQE_ERR(ECANCELED, &cqe);
    return NULL;
}

static void a_session_has_one_thread_at_a_time(void)
{
    struct stn_begin_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct waiter waiter;
    struct arguments a;
    struct drives drives;
    uint64_t mine, others;
    stn_session *other;
    pthread_t thread;
    uint32_t key;
    void *memory;
    make(&drives, &a);
    other = session_make(a.pool);
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.len_bytes = 4096;
    OK(stn_begin(a.session, &opts, &mine));
    opts.participant = 1;
    OK(stn_begin(other, &opts, &others));
    OK(stn_buf_alloc(a.session, 4096, &memory, &key));
    sqe_transfer(&sqe, STN_OP_WRITE, mine, key, 4096, 0);
    cqe = session_run(a.session, &sqe);
    CHECK(cqe.result == 4096);
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_COMMIT;
    sqe.checkpoint = mine;
    CHECK(OK(stn_submit(a.session, &sqe, 1)) == 1);
    waiter.session = a.session;
    waiter.result = -1;
    CHECK(pthread_create(&thread, NULL, wait_long, &waiter) == 0);
    usleep(200000); /* now it waits */
    EACH_SESSION_CALL(EBUSY, &a);
    ERR(EBUSY, stn_session_destroy(a.session));
    OK(stn_session_destroy(other));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(waiter.result == 1);
    end(&drives, &a);
}

static volatile int hammer_on;

static void *hammer_close(void *pool)
{
    while (hammer_on)
        stn_pool_close(pool);
    return NULL;
}

/* Repeats a call until it meets the other thread inside stn_pool_close(). */
#define MEET(call) \
    do { \
        long tries; \
        for (tries = 0; (call) != -EBUSY; tries++) \
            CHECK(tries < 100000000); \
        test_error(__FILE__, __LINE__, #call, "EBUSY", EBUSY, -EBUSY); \
    } while (0)

static void a_pool_that_is_being_closed(void)
{
    struct arguments a;
    struct drives drives;
    pthread_t thread;
    if (test_is_instrumented())
        return;
    make(&drives, &a);
    hammer_on = 1;
    CHECK(pthread_create(&thread, NULL, hammer_close, a.pool) == 0);
    MEET(stn_pool_info(a.pool, NULL));
    MEET(stn_drive_info(a.pool, 0, NULL));
    MEET(stn_list_create(a.pool, NULL));
    MEET(stn_latest(a.pool, "a", NULL));
    MEET(stn_remove(a.pool, NULL));
    MEET(stn_checkpoint_show(a.pool, "a@1", NULL));
    MEET(stn_save(a.pool, NULL));
    MEET(stn_restore(a.pool, NULL, NULL, 0));
    MEET(stn_session_create(a.pool, NULL, NULL));
    hammer_on = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    end(&drives, &a);
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
    struct drives drives;
    pthread_t thread;
    int list_busy = 0, checkpoint_busy = 0;
    if (test_is_instrumented())
        return;
    make(&drives, &a);
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
            OK(stn_list_create(a.pool, &a.list));
        {
            struct stn_checkpoint_info info;
            CLEAR(info);
            if (stn_checkpoint_get(a.checkpoint, &info) < 0)
                OK(stn_checkpoint_show(a.pool, "a@1", &a.checkpoint));
        }
    }
    test_error(__FILE__, __LINE__, "stn_list_free(", "EBUSY", EBUSY, -EBUSY);
    test_error(__FILE__, __LINE__, "stn_checkpoint_free(", "EBUSY", EBUSY, -EBUSY);
    end(&drives, &a);
}

/* Leaves a checkpoint that it has joined. */
static void *leave(void *context)
{
    struct arguments *a = context;
    struct stn_begin_opts opts;
    uint64_t checkpoint;
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.participant = 1;
    opts.len_bytes = 4096;
    OK(stn_begin(a->session, &opts, &checkpoint));
    usleep(200000); /* the other one waits by now */
    OK(stn_close(a->session, checkpoint));
    return NULL;
}

static void a_save_that_waits_for_others(void)
{
    struct stn_checkpoint_info info;
    struct stn_save_shard shard;
    struct stn_save_opts opts;
    struct arguments a;
    struct drives drives;
    pthread_t thread;
    make(&drives, &a);
    memset(&shard, 0, sizeof(shard));
    shard.name = "page";
    shard.bytes = page;
    shard.len_bytes = sizeof(page);
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.shards = &shard;
    opts.shard_count = 1;
    opts.shard_size = sizeof(shard);
    opts.timeout_ns = 300000000;
    ERR(ETIME, stn_save(a.pool, &opts)); /* no other participant joins */
    opts.timeout_ns = 1;
    ERR(ETIME, stn_save(a.pool, &opts));
    opts.timeout_ns = 0;
    CHECK(pthread_create(&thread, NULL, leave, &a) == 0);
    ERR(ECANCELED, stn_save(a.pool, &opts));
    CHECK(pthread_join(thread, NULL) == 0);
    CLEAR(info);
    ERR(ENOENT, stn_latest(a.pool, "both", &info));
    opts.participants = 1;
    opts.timeout_ns = UINT64_MAX;
    CHECK(OK(stn_save(a.pool, &opts)) == sizeof(page));
    OK(stn_latest(a.pool, "both", &info));
    CHECK(info.participants == 1 && info.bytes == sizeof(page));
    end(&drives, &a);
}

static void wait_after_destroy(void)
{
    struct arguments a;
    struct stn_cqe cqe;
    struct stn_sqe sqe;
    struct drives drives;
    stn_session *session;
    make(&drives, &a);
    session = session_make(a.pool);
    memset(&sqe, 0, sizeof(sqe));
    CHECK(OK(stn_submit(session, &sqe, 1)) == 1);
    OK(stn_session_destroy(session));
    ERR(EBADF, stn_wait(session, &cqe, 1, 1, -1));
    ERR(EBADF, stn_session_destroy(session));
    end(&drives, &a);
}

static void a_wait_that_would_never_end(void)
{
    struct arguments a;
    struct stn_cqe cqes[2];
    struct stn_sqe sqe;
    struct drives drives;
    make(&drives, &a);
    ERR(ENODATA, stn_wait(a.session, cqes, 1, 1, -1));
    memset(&sqe, 0, sizeof(sqe));
    CHECK(OK(stn_submit(a.session, &sqe, 1)) == 1);
    ERR(ENODATA, stn_wait(a.session, cqes, 2, 2, -1));
    ERR(EINVAL, stn_wait(a.session, cqes, 2, 1, -1));
    CHECK(OK(stn_wait(a.session, cqes, 1, 2, -1)) == 1);
    end(&drives, &a);
}

static void a_wait_that_ends_by_time(void)
{
    struct stn_begin_opts opts;
    struct arguments a;
    struct stn_sqe sqes[2];
    struct stn_cqe cqes[2];
    struct drives drives;
    uint64_t checkpoint;
    uint32_t key;
    void *memory;
    make(&drives, &a);
    CLEAR(opts);
    opts.name = "both@1";
    opts.participants = 2;
    opts.len_bytes = 4096;
    OK(stn_begin(a.session, &opts, &checkpoint));
    OK(stn_buf_alloc(a.session, 4096, &memory, &key));
    sqe_transfer(&sqes[0], STN_OP_WRITE, checkpoint, key, 4096, 0);
    memset(&sqes[1], 0, sizeof(sqes[1]));
    sqes[1].opcode = STN_OP_COMMIT;
    sqes[1].checkpoint = checkpoint;
    CHECK(OK(stn_submit(a.session, sqes, 2)) == 2);
    /* The write completes, the commit waits for the other participant. */
    CHECK(OK(stn_wait(a.session, cqes, 2, 2, test_is_instrumented() ? 30000000000 : 2000000000)) == 1);
    ERR(ETIME, stn_wait(a.session, cqes, 1, 1, 1000000));
    ERR(ETIME, stn_wait(a.session, cqes, 1, 1, 0));
    end(&drives, &a);
}

static void entries_that_are_wrong(void)
{
    struct arguments a;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct drives drives;
    uint64_t checkpoint, others;
    stn_session *other;
    uint32_t key, others_key;
    void *memory;
    make(&drives, &a);
    other = session_make(a.pool);
    others = begin(other, "other@1", MIB);
    OK(stn_buf_alloc(other, MIB, &memory, &others_key));
    checkpoint = begin(a.session, "mine@1", 4 * MIB);
    OK(stn_buf_alloc(a.session, 2 * MIB, &memory, &key));
#define WRONG(error, change) \
    do { \
        sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, MIB, 0); \
        change; \
        cqe = session_run(a.session, &sqe); \
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
    cqe = session_run(a.session, &sqe);
    CHECK(cqe.result == (int64_t)(2 * MIB));
    WRONG(EEXIST, (void)0);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 2 * MIB, 2 * MIB);
    cqe = session_run(a.session, &sqe);
    CHECK(cqe.result == (int64_t)(2 * MIB));
    commit(a.session, checkpoint);
    WRONG(EBADF, (void)0); /* it is committed */
    OK(stn_session_destroy(other));
    end(&drives, &a);
}

static void a_checkpoint_that_is_given_up(void)
{
    struct arguments a;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct stn_checkpoint_info info;
    struct drives drives;
    uint64_t checkpoint;
    make(&drives, &a);
    checkpoint = begin(a.session, "gone@1", MIB);
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_ABORT;
    sqe.checkpoint = checkpoint;
    cqe = session_run(a.session, &sqe);
    CHECK(cqe.result == 0);
    cqe = session_run(a.session, &sqe);
    CQE_ERR(EBADF, &cqe);
    OK(stn_close(a.session, checkpoint));
    ERR(EBADF, stn_close(a.session, checkpoint));
    CLEAR(info);
    ERR(ENOENT, stn_latest(a.pool, "gone", &info));
    end(&drives, &a);
}

static void a_ring_of_one_entry(void)
{
    struct stn_session_opts opts;
    struct stn_sqe sqes[8];
    struct stn_cqe cqes[8];
    struct arguments a;
    struct drives drives;
    stn_session *session;
    int round, done;
    make(&drives, &a);
    CLEAR(opts);
    opts.entries = 1;
    opts.flags = STN_SESSION_NO_MEMORY;
    OK(stn_session_create(a.pool, &opts, &session));
    memset(sqes, 0, sizeof(sqes));
    for (round = 0; round < 1000; round++) {
        CHECK(OK(stn_submit(session, sqes, 8)) == 1);
        for (done = 0; done == 0;)
            done = (int)OK(stn_peek(session, cqes, 8));
        CHECK(done == 1);
    }
    OK(stn_session_destroy(session));
    end(&drives, &a);
}

static void a_full_ring(void)
{
    struct stn_session_opts opts;
    struct stn_sqe sqes[64];
    struct stn_cqe cqes[64];
    struct arguments a;
    struct drives drives;
    stn_session *session;
    int64_t accepted = 0;
    int i, round;
    make(&drives, &a);
    CLEAR(opts);
    opts.entries = 16;
    OK(stn_session_create(a.pool, &opts, &session));
    memset(sqes, 0, sizeof(sqes));
    /* Nothing is taken: twice the entries may be outstanding, and no more. */
    for (i = 0; i < 1000 && accepted < 32; i++) {
        accepted += OK(stn_submit(session, sqes, 64));
        usleep(1000);
    }
    CHECK(accepted == 32);
    CHECK(OK(stn_submit(session, sqes, 64)) == 0);
    CHECK(OK(stn_wait(session, cqes, 32, 64, -1)) == 32);
    for (round = 0; round < 100; round++) {
        int64_t in = OK(stn_submit(session, sqes, 64)), out = 0;
        CHECK(in >= 16 && in <= 32);
        while (out < in)
            out += OK(stn_wait(session, cqes, 1, 64, -1));
        CHECK(out == in);
    }
    OK(stn_session_destroy(session));
    end(&drives, &a);
}

struct worker {
    stn_pool *pool;
    int number;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct stn_session_opts opts;
    stn_session *session;
    char name[32];
    int step;
    CLEAR(opts);
    opts.memory_bytes = 2 * MIB;
    opts.entries = 8;
    OK(stn_session_create(worker->pool, &opts, &session));
    for (step = 0; step < 3; step++) {
        snprintf(name, sizeof(name), "worker%d@%d", worker->number, step);
        save(session, name, 20000);
        if (step > 0) {
            snprintf(name, sizeof(name), "worker%d@%d", worker->number, step - 1);
            OK(stn_remove(worker->pool, name));
        }
    }
    OK(stn_session_destroy(session));
    return NULL;
}

static void sixty_four_sessions_on_sixty_four_threads(void)
{
    struct worker workers[64];
    pthread_t threads[64];
    stn_pool *pool;
    stn_list *list;
    struct drives drives;
    int i;
    /* Small chunks, and drives on which that many checkpoints have room. */
    drives_make_sized(&drives, 2, 320 * MIB, 65536);
    pool = pool_open(&drives);
    for (i = 0; i < 64; i++) {
        workers[i].pool = pool;
        workers[i].number = i;
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (i = 0; i < 64; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(stn_list_create(pool, &list));
    CHECK(OK(stn_list_count(list)) == 64);
    OK(stn_list_free(list));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static const struct test tests[] = {
    {"null_handles", null_handles},
    {"null_arguments", null_arguments},
    {"closed_handles", closed_handles},
    {"garbage_handles", garbage_handles},
    {"a_forked_childs_handles", a_forked_childs_handles},
    {"a_forked_child_does_not_keep_the_pool", a_forked_child_does_not_keep_the_pool},
    {"a_pool_with_sessions_stays_open", a_pool_with_sessions_stays_open},
    {"a_buffer_in_flight_is_kept", a_buffer_in_flight_is_kept},
    {"a_session_has_one_thread_at_a_time", a_session_has_one_thread_at_a_time},
    {"a_pool_that_is_being_closed", a_pool_that_is_being_closed},
    {"a_snapshot_that_is_being_used", a_snapshot_that_is_being_used},
    {"a_save_that_waits_for_others", a_save_that_waits_for_others},
    {"wait_after_destroy", wait_after_destroy},
    {"a_wait_that_would_never_end", a_wait_that_would_never_end},
    {"a_wait_that_ends_by_time", a_wait_that_ends_by_time},
    {"entries_that_are_wrong", entries_that_are_wrong},
    {"a_checkpoint_that_is_given_up", a_checkpoint_that_is_given_up},
    {"a_ring_of_one_entry", a_ring_of_one_entry},
    {"a_full_ring", a_full_ring},
    {"sixty_four_sessions_on_sixty_four_threads", sixty_four_sessions_on_sixty_four_threads},
};

TEST_MAIN(tests)
