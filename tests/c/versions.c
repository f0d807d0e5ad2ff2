/* SPDX-License-Identifier: Apache-2.0
 *
 * A program and a library of different versions. Built with the header of either; with LATER when
 * that is the later one. STN_TEST_LIBRARY says which library it runs on: "this" or "later". */
#define _GNU_SOURCE
#include "test.h"

#ifdef LATER
#define PROGRAM_IS_LATER 1
#define SET_LATER(object, value) ((object).later = (value))
#else
#define PROGRAM_IS_LATER 0
#define SET_LATER(object, value) ((void)(value))
#endif

/* A structure followed by guard bytes. */
#define GUARDED(type, name) \
    struct { \
        struct type s; \
        unsigned char guard[64]; \
    } name; \
    memset(&name, 0x5a, sizeof(name)); \
    CLEAR(name.s)
#define CHECK_GUARD(name) \
    do { \
        size_t i_; \
        for (i_ = 0; i_ < sizeof(name.guard); i_++) \
            CHECK(name.guard[i_] == 0x5a); \
    } while (0)

static int library_is_later(void)
{
    const char *library = getenv("STN_TEST_LIBRARY");
    return library != NULL && strcmp(library, "later") == 0;
}

static void facts(void)
{
    GUARDED(stn_pool_info, info);
    GUARDED(stn_checkpoint_info, checkpoint);
    GUARDED(stn_segment_info, segment);
    struct drives drives;
    stn_pool *pool;
    stn_session *session;
    uint64_t handle;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 100000);
    SET_LATER(info.s, 99);
    SET_LATER(checkpoint.s, 99);
    OK(stn_pool_info(pool, &info.s));
    CHECK(info.s.drives == 1 && info.s.free_bytes > 0);
    CHECK_GUARD(info);
    OK(stn_latest(pool, "a", &checkpoint.s));
    CHECK(checkpoint.s.bytes == 100000);
    CHECK_GUARD(checkpoint);
    OK(stn_open(session, "a@1", 0, &handle, &segment.s));
    CHECK(segment.s.len_bytes == 100000 && segment.s.shards == 2);
    CHECK_GUARD(segment);
#ifdef LATER
    /* A field that an earlier library does not know is zero. */
    CHECK(info.s.later == (library_is_later() ? 7u : 0u));
    CHECK(checkpoint.s.later == (library_is_later() ? 7u : 0u));
#endif
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void options(void)
{
    struct stn_session_opts session_opts;
    struct stn_begin_opts begin_opts;
    struct stn_shard shards[2];
    struct drives drives;
    stn_pool *pool;
    stn_session *session;
    uint64_t handle;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    CLEAR(session_opts);
    session_opts.memory_bytes = 2 * MIB;
    SET_LATER(session_opts, 1);
    if (PROGRAM_IS_LATER && !library_is_later()) {
        ERR(E2BIG, stn_session_create(pool, &session_opts, &session));
        SET_LATER(session_opts, 0);
    }
    OK(stn_session_create(pool, &session_opts, &session));
    memset(shards, 0, sizeof(shards));
    shards[0].name = "one";
    shards[0].len_bytes = 10;
    shards[1].name = "two";
    shards[1].offset_bytes = 10;
    shards[1].len_bytes = 10;
    CLEAR(begin_opts);
    begin_opts.name = "b@1";
    begin_opts.len_bytes = 20;
    begin_opts.shards = shards;
    begin_opts.shard_count = 2;
    begin_opts.shard_size = sizeof(shards[0]);
    SET_LATER(shards[1], 1);
    if (PROGRAM_IS_LATER && !library_is_later()) {
        ERR(E2BIG, stn_begin(session, &begin_opts, &handle));
        SET_LATER(shards[1], 0);
    }
    OK(stn_begin(session, &begin_opts, &handle));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static const struct test tests[] = {
    {"facts", facts},
    {"options", options},
};

TEST_MAIN(tests)
