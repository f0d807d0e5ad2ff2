/* SPDX-License-Identifier: Apache-2.0
 *
 * What there can be too much of. */
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

/* The next descriptor that is free: no call can have one more when this is the limit. */
static rlim_t next_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && close(fd) == 0);
    return (rlim_t)fd;
}

static void engines(void)
{
    struct stn_engine_opts opts;
    stn_engine *opened[64], *more;
    struct pool pool;
    int i;
    if (!test_has_files())
        return;
    set_limit(RLIMIT_NOFILE, 8192);
    pool_make(&pool, 1);
    pool_opts(&pool, &opts);
    opts.flags = STN_OPEN_READ_ONLY;
    opts.reactors = opts.checksum_threads = 1;
    for (i = 0; i < 64; i++)
        OK(stn_engine_open(&opts, &opened[i]));
    ERR(EMFILE, stn_engine_open(&opts, &more));
    for (i = 0; i < 64; i++)
        OK(stn_engine_close(opened[i]));
    pool_remove(&pool);
}

static void rings(void)
{
    static stn_ring *made[1024];
    struct stn_ring_opts opts;
    stn_engine *engine;
    struct pool pool;
    stn_ring *more;
    int i;
    set_limit(RLIMIT_NOFILE, 8192);
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    CLEAR(opts);
    opts.entries = 1;
    opts.flags = STN_RING_NO_MEMORY;
    for (i = 0; i < 1024; i++)
        OK(stn_ring_create(engine, &opts, &made[i]));
    ERR(EMFILE, stn_ring_create(engine, &opts, &more));
    for (i = 0; i < 1024; i++)
        OK(stn_ring_destroy(made[i]));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void lists_and_descriptions(void)
{
    static stn_list *lists[1024];
    static stn_checkpoint *checkpoints[1024];
    stn_checkpoint *more_checkpoint;
    stn_engine *engine;
    stn_list *more_list;
    stn_ring *ring;
    struct pool pool;
    int i;
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    save(ring, "a@1", 100000);
    for (i = 0; i < 1024; i++) {
        OK(stn_list_create(engine, &lists[i]));
        OK(stn_checkpoint_show(engine, "a@1", &checkpoints[i]));
    }
    ERR(EMFILE, stn_list_create(engine, &more_list));
    ERR(EMFILE, stn_checkpoint_show(engine, "a@1", &more_checkpoint));
    for (i = 0; i < 1024; i++) {
        OK(stn_list_free(lists[i]));
        OK(stn_checkpoint_free(checkpoints[i]));
    }
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void buffers_and_segments_of_a_ring(void)
{
    static char page[4096] __attribute__((aligned(4096)));
    struct stn_begin_opts opts;
    stn_engine *engine;
    uint64_t handle;
    stn_ring *ring;
    struct pool pool;
    uint32_t key;
    void *memory;
    int i;
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    ERR(ENOMEM, stn_buf_alloc(ring, 17 * MIB, &memory, &key));
    save(ring, "a@1", 100000);
    for (i = 0; i < 1024; i++) {
        OK(stn_buf_alloc(ring, 1, &memory, &key));
        OK(stn_open(ring, "a@1", 0, &handle, NULL));
    }
    ERR(EMFILE, stn_buf_alloc(ring, 1, &memory, &key));
    if (test_has_files())
        ERR(EMFILE, stn_mem_register(ring, page, sizeof(page), &key));
    ERR(EMFILE, stn_open(ring, "a@1", 0, &handle, NULL));
    CLEAR(opts);
    opts.name = "b@1";
    opts.len_bytes = 1;
    ERR(EMFILE, stn_begin(ring, &opts, &handle));
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void checkpoints_of_a_pool(void)
{
    struct stn_begin_opts opts;
    struct stn_pool_info info;
    stn_engine *engine;
    uint64_t handle, i;
    stn_ring *ring;
    struct pool pool;
    char name[32];
    if (!test_has_files())
        return;
    pool_make_sized(&pool, 1, 64 * MIB, 4096);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    CLEAR(info);
    OK(stn_pool_info(engine, &info));
    CLEAR(opts);
    opts.name = name;
    opts.len_bytes = 1;
    for (i = 0; i < info.max_checkpoints; i++) {
        snprintf(name, sizeof(name), "a@%d", (int)i);
        OK(stn_begin(ring, &opts, &handle));
    }
    opts.name = "b@1";
    ERR(EMFILE, stn_begin(ring, &opts, &handle));
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void memory(void)
{
    struct stn_restore_opts restore;
    struct stn_ring_opts opts;
    stn_engine *engine;
    stn_ring *ring, *more;
    struct pool pool;
    char bytes[16];
    rlim_t before;
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    save(ring, "a@1", 100000);
    CLEAR(opts);
    opts.memory_bytes = (uint64_t)1 << 50;
    if (!test_is_instrumented()) /* valgrind has an answer of its own to such a length */
        ERR(ENOMEM, stn_ring_create(engine, &opts, &more));
    if (!test_is_instrumented() && test_has_files()) {
        CLEAR(restore);
        restore.name = "a@1";
        restore.len_bytes = sizeof(bytes);
        CHECK(OK(stn_restore(engine, &restore, bytes, sizeof(bytes))) == sizeof(bytes));
        before = get_limit(RLIMIT_AS);
        set_limit(RLIMIT_AS, 4096);
        ERR(ENOMEM, stn_restore(engine, &restore, bytes, sizeof(bytes)));
        set_limit(RLIMIT_AS, before);
    }
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static void descriptors(void)
{
    struct stn_restore_opts restore;
    struct stn_ring_opts opts;
    stn_engine *engine;
    stn_ring *ring, *more;
    struct pool pool;
    char bytes[16];
    rlim_t before = get_limit(RLIMIT_NOFILE);
    pool_make(&pool, 1);
    engine = pool_open(&pool);
    ring = ring_make(engine);
    save(ring, "a@1", 100000);
    set_limit(RLIMIT_NOFILE, next_descriptor());
    ERR(EMFILE, stn_ring_eventfd(ring));
    CLEAR(opts);
    opts.flags = STN_RING_NO_MEMORY;
    ERR(EMFILE, stn_ring_create(engine, &opts, &more));
    CLEAR(restore);
    restore.name = "a@1";
    restore.len_bytes = sizeof(bytes);
    /* With huge pages it is these that cannot be had. */
    if (test_has_files())
        ERR(EMFILE, stn_restore(engine, &restore, bytes, sizeof(bytes)));
    set_limit(RLIMIT_NOFILE, before);
    OK(stn_ring_eventfd(ring));
    OK(stn_ring_destroy(ring));
    OK(stn_engine_close(engine));
    pool_remove(&pool);
}

static const struct test tests[] = {
    {"engines", engines},
    {"rings", rings},
    {"lists_and_descriptions", lists_and_descriptions},
    {"buffers_and_segments_of_a_ring", buffers_and_segments_of_a_ring},
    {"checkpoints_of_a_pool", checkpoints_of_a_pool},
    {"memory", memory},
    {"descriptors", descriptors},
};

TEST_MAIN(tests)
