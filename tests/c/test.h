/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests share. A test is a function that ends when something is wrong; ERR() also records
 * which function returned which error, so that a script can find documented errors that no test
 * provokes.
 */
#ifndef STN_TEST_H
#define STN_TEST_H

#include <stanchion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1024 * 1024)
#define MAX_DRIVES 4

/* The drives of one pool. */
struct drives {
    char directory[256];
    char paths[MAX_DRIVES][512];
    const char *addresses[MAX_DRIVES];
    uint32_t drive_count;
    int are_files;
};

struct test {
    const char *name;
    void (*run)(void);
};

#define CHECK(condition) \
    ((condition) ? (void)0 : test_fail(__FILE__, __LINE__, #condition))
/* The call succeeds. */
#define OK(call) test_ok(__FILE__, __LINE__, #call, (int64_t)(call))
/* The call returns -error. */
#define ERR(error, call) test_error(__FILE__, __LINE__, #call, #error, (error), (int64_t)(call))
/* The completion has that result. */
#define CQE_ERR(error, cqe) test_cqe(__FILE__, __LINE__, #error, (error), (cqe))
/* A structure that is zero apart from its size. */
#define CLEAR(object) (memset(&(object), 0, sizeof(object)), (object).size = sizeof(object))

void test_fail(const char *file, int line, const char *what);
int64_t test_ok(const char *file, int line, const char *call, int64_t result);
void test_error(const char *file, int line, const char *call, const char *name, int error,
                int64_t result);
void test_cqe(const char *file, int line, const char *name, int error, const struct stn_cqe *cqe);

/* Runs the tests whose names contain the argument, or all. */
int test_main(int argc, char **argv, const struct test *tests, size_t count);
#define TEST_MAIN(tests) \
    int main(int argc, char **argv) \
    { \
        return test_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0])); \
    }

/* Under a sanitizer or valgrind: time and address space differ from a plain run. */
int test_is_instrumented(void);
/* Whether the drives are files of ours, and not those of STN_TEST_DRIVES. */
int test_has_files(void);

/* Makes a pool of them: of the drives in STN_TEST_DRIVES, one a line, or of as many files. */
void drives_make(struct drives *drives, uint32_t drive_count);
void drives_make_sized(struct drives *drives, uint32_t drive_count, uint64_t drive_bytes,
                     uint64_t chunk_bytes);
void drives_remove(struct drives *drives);
void pool_opts(const struct drives *drives, struct stn_pool_opts *opts);
stn_pool *pool_open(const struct drives *drives);
/* The same with STN_POOL_READ_ONLY. */
stn_pool *pool_open_read_only(const struct drives *drives);

/* Where structures lie on a drive: see docs/on-disk-format.md. */
#define FIRST_LABEL (1 * MIB)
#define FRONT_ROOTS (3 * MIB)
#define CATALOGUES (4 * MIB)
void overwrite(const char *path, uint64_t offset, const void *bytes, size_t length);

stn_session *session_make(stn_pool *pool);
void sqe_transfer(struct stn_sqe *sqe, uint8_t opcode, uint64_t checkpoint, uint32_t key,
                  uint64_t len_bytes, uint64_t segment_offset);
/* Submits one entry and returns its completion. */
struct stn_cqe session_run(stn_session *session, const struct stn_sqe *sqe);
uint64_t begin(stn_session *session, const char *name, uint64_t len_bytes);
void commit(stn_session *session, uint64_t checkpoint);
/* Saves bytes of a pattern as NAME@STEP of one participant and two shards, "head" and "tail". */
void save(stn_session *session, const char *name, uint64_t len_bytes);
/* The pattern's byte at a place of the segment. */
unsigned char pattern(uint64_t at);
void check_pattern(const unsigned char *bytes, uint64_t at, uint64_t len_bytes);

#endif
