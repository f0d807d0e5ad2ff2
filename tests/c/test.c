/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests share; see test.h. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

void test_fail(const char *file, int line, const char *what)
{
    char detail[512];
    stn_last_error(detail, sizeof(detail));
    fprintf(stderr, "%s:%d: %s\n  last error of the library: %s\n", file, line, what, detail);
    abort();
}

int64_t test_ok(const char *file, int line, const char *call, int64_t result)
{
    char text[512];
    if (result < 0) {
        snprintf(text, sizeof(text), "%s: %s", call, stn_strerror((int)result));
        test_fail(file, line, text);
    }
    return result;
}

/* The file of the errors that were returned; opened before a test uses up all descriptors. */
static int coverage = -1;

/* One line for each error that was returned; several processes may append. */
static void cover(const char *function, size_t length, int error)
{
    char line[256];
    int count;
    if (coverage < 0)
        return;
    count = snprintf(line, sizeof(line), "%.*s %d\n", (int)length, function, -error);
    if (write(coverage, line, (size_t)count) != count)
        abort();
}

void test_error(const char *file, int line, const char *call, const char *name, int error,
                int64_t result)
{
    char text[512];
    if (result != -error) {
        snprintf(text, sizeof(text), "%s: %lld (%s) instead of -%s", call, (long long)result,
                 stn_strerror((int)result), name);
        test_fail(file, line, text);
    }
    cover(call, strcspn(call, "("), error);
}

void test_cqe(const char *file, int line, const char *name, int error, const struct stn_cqe *cqe)
{
    char text[512];
    if (cqe->result != -error) {
        snprintf(text, sizeof(text), "completion: %lld (%s) instead of -%s",
                 (long long)cqe->result, stn_strerror((int)cqe->result), name);
        test_fail(file, line, text);
    }
    cover("stn_cqe", 7, error);
}

int test_main(int argc, char **argv, const struct test *tests, size_t count)
{
    const char *path = getenv("STN_TEST_COVERAGE");
    size_t i, ran = 0;
    if (path != NULL) {
        coverage = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        CHECK(coverage >= 0);
    }
    for (i = 0; i < count; i++) {
        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL)
            continue;
        printf("%s ... ", tests[i].name);
        fflush(stdout);
        tests[i].run();
        printf("ok\n");
        ran++;
    }
    return ran == 0;
}

int test_is_instrumented(void)
{
    return getenv("STN_TEST_INSTRUMENTED") != NULL;
}

int test_has_files(void)
{
    return getenv("STN_TEST_DRIVES") == NULL;
}

static void name_drives(struct drives *drives, uint32_t drive_count)
{
    const char *given = getenv("STN_TEST_DRIVES");
    uint32_t i;
    memset(drives, 0, sizeof(*drives));
    drives->are_files = given == NULL;
    if (given == NULL) {
        const char *parent = getenv("STN_TEST_DIRECTORY");
        snprintf(drives->directory, sizeof(drives->directory), "%s/stn-test-XXXXXX",
                 parent ? parent : "/var/tmp");
        CHECK(mkdtemp(drives->directory) != NULL);
    }
    for (i = 0; i < drive_count && i < MAX_DRIVES; i++) {
        if (given == NULL) {
            snprintf(drives->paths[i], sizeof(drives->paths[i]), "%s/drive%u", drives->directory, i);
        } else {
            size_t length = strcspn(given, "\n");
            if (length == 0)
                break;
            snprintf(drives->paths[i], sizeof(drives->paths[i]), "%.*s", (int)length, given);
            given += length + (given[length] == '\n');
        }
        drives->addresses[i] = drives->paths[i];
        drives->drive_count++;
    }
    CHECK(drives->drive_count > 0);
}

void overwrite(const char *path, uint64_t offset, const void *bytes, size_t length)
{
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, bytes, length, (off_t)offset) == (ssize_t)length);
    CHECK(fsync(fd) == 0 && close(fd) == 0);
}

void drives_make(struct drives *drives, uint32_t drive_count)
{
    drives_make_sized(drives, drive_count, 64 * MIB, 0);
}

void drives_make_sized(struct drives *drives, uint32_t drive_count, uint64_t drive_bytes,
                     uint64_t chunk_bytes)
{
    struct stn_format_opts opts;
    name_drives(drives, drive_count);
    CLEAR(opts);
    opts.flags = drives->are_files ? 0 : STN_FORMAT_FORCE;
    opts.drives = drives->addresses;
    opts.drive_count = drives->drive_count;
    opts.create_bytes = drives->are_files ? drive_bytes : 0;
    opts.chunk_bytes = chunk_bytes;
    OK(stn_format(&opts));
}

void drives_remove(struct drives *drives)
{
    uint32_t i;
    if (!drives->are_files)
        return;
    for (i = 0; i < drives->drive_count; i++)
        unlink(drives->paths[i]);
    CHECK(rmdir(drives->directory) == 0);
}

void pool_opts(const struct drives *drives, struct stn_pool_opts *opts)
{
    memset(opts, 0, sizeof(*opts));
    opts->size = sizeof(*opts);
    opts->drives = drives->addresses;
    opts->drive_count = drives->drive_count;
    opts->huge_pages = drives->are_files ? STN_HUGE_OFF : STN_HUGE_REQUIRED;
}

stn_pool *pool_open(const struct drives *drives)
{
    struct stn_pool_opts opts;
    stn_pool *pool = NULL;
    pool_opts(drives, &opts);
    OK(stn_pool_open(&opts, &pool));
    return pool;
}

stn_pool *pool_open_read_only(const struct drives *drives)
{
    struct stn_pool_opts opts;
    stn_pool *pool = NULL;
    pool_opts(drives, &opts);
    opts.flags = STN_POOL_READ_ONLY;
    OK(stn_pool_open(&opts, &pool));
    return pool;
}

stn_session *session_make(stn_pool *pool)
{
    struct stn_session_opts opts;
    stn_session *session = NULL;
    CLEAR(opts);
    opts.memory_bytes = 16 * MIB;
    OK(stn_session_create(pool, &opts, &session));
    return session;
}

void sqe_transfer(struct stn_sqe *sqe, uint8_t opcode, uint64_t checkpoint, uint32_t key,
                  uint64_t len_bytes, uint64_t segment_offset)
{
    memset(sqe, 0, sizeof(*sqe));
    sqe->opcode = opcode;
    sqe->buffer = key;
    sqe->checkpoint = checkpoint;
    sqe->len_bytes = len_bytes;
    sqe->segment_offset_bytes = segment_offset;
    sqe->user_data = 0x5afe0000 + opcode;
}

struct stn_cqe session_run(stn_session *session, const struct stn_sqe *sqe)
{
    struct stn_cqe cqe;
    memset(&cqe, 0xee, sizeof(cqe));
    CHECK(OK(stn_submit(session, sqe, 1)) == 1);
    CHECK(OK(stn_wait(session, &cqe, 1, 1, -1)) == 1);
    CHECK(cqe.user_data == sqe->user_data);
    CHECK(cqe.flags == 0);
    return cqe;
}

uint64_t begin(stn_session *session, const char *name, uint64_t len_bytes)
{
    struct stn_begin_opts opts;
    uint64_t checkpoint = 0;
    CLEAR(opts);
    opts.name = name;
    opts.len_bytes = len_bytes;
    OK(stn_begin(session, &opts, &checkpoint));
    return checkpoint;
}

void commit(stn_session *session, uint64_t checkpoint)
{
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_COMMIT;
    sqe.checkpoint = checkpoint;
    sqe.user_data = 77;
    cqe = session_run(session, &sqe);
    CHECK(cqe.result == 0);
    CHECK(cqe.aux > 0);
}

unsigned char pattern(uint64_t at)
{
    return (unsigned char)(at * 31 + at / 251 + at / 65536);
}

void check_pattern(const unsigned char *bytes, uint64_t at, uint64_t len_bytes)
{
    uint64_t i;
    for (i = 0; i < len_bytes; i++) {
        if (bytes[i] != pattern(at + i)) {
            fprintf(stderr, "byte %llu is wrong\n", (unsigned long long)(at + i));
            CHECK(!"the bytes are those that were saved");
        }
    }
}

void save(stn_session *session, const char *name, uint64_t len_bytes)
{
    static const uint64_t shape[] = {2, 500};
    struct stn_shard shards[2];
    struct stn_begin_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    uint64_t checkpoint, i;
    uint32_t key;
    void *memory;

    memset(shards, 0, sizeof(shards));
    shards[0].name = "head";
    shards[0].len_bytes = 1000;
    shards[0].dtype = "U8";
    shards[0].shape = shape;
    shards[0].dimensions = 2;
    shards[1].name = "tail";
    shards[1].offset_bytes = 1000;
    shards[1].len_bytes = len_bytes - 1000;
    CLEAR(opts);
    opts.name = name;
    opts.len_bytes = len_bytes;
    opts.shards = shards;
    opts.shard_count = 2;
    opts.shard_size = sizeof(shards[0]);
    OK(stn_begin(session, &opts, &checkpoint));
    OK(stn_buf_alloc(session, len_bytes, &memory, &key));
    for (i = 0; i < len_bytes; i++)
        ((unsigned char *)memory)[i] = pattern(i);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, len_bytes, 0);
    cqe = session_run(session, &sqe);
    CHECK(cqe.result == (int64_t)len_bytes);
    commit(session, checkpoint);
    OK(stn_close(session, checkpoint));
    OK(stn_buf_free(session, key));
}
