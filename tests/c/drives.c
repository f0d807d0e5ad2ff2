/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives that are missing, strange, damaged, in use, or that fail. Some of it needs root, for loop
 * devices and small file systems; without it those tests say so and are left out. */
#define _GNU_SOURCE
#include "test.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

static int run(const char *format, ...)
{
    char command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof(command), format, arguments);
    va_end(arguments);
    return system(command);
}

static void open_error(int error, const char *name, const char *const *drives, uint32_t count)
{
    struct stn_pool_opts opts;
    stn_pool *pool = NULL;
    CLEAR(opts);
    opts.drives = drives;
    opts.drive_count = count;
    opts.huge_pages = STN_HUGE_OFF;
    test_error(__FILE__, __LINE__, "stn_pool_open(", name, error,
               stn_pool_open(&opts, &pool));
    CHECK(pool == NULL);
}
#define OPEN_ERR(error, drives, count) open_error(error, #error, drives, count)

static void drives_that_are_not_those_of_one_pool(void)
{
    const char *mixed[3];
    struct drives one, two;
    struct stn_format_opts opts;
    if (!test_has_files())
        return;
    drives_make(&one, 2);
    drives_make(&two, 1);
    OPEN_ERR(STN_E_DRIVES, one.addresses, 1); /* one is missing */
    mixed[0] = one.addresses[0];
    mixed[1] = two.addresses[0];
    OPEN_ERR(STN_E_DRIVES, mixed, 2); /* of another pool */
    CHECK(run("cp %s %s", one.paths[0], two.paths[0]) == 0);
    OPEN_ERR(STN_E_DRIVES, mixed, 2); /* twice the same drive */
    mixed[1] = mixed[0];
    OPEN_ERR(STN_E_DRIVES, mixed, 2); /* named twice */
    CLEAR(opts);
    opts.drives = mixed;
    opts.drive_count = 2;
    opts.flags = STN_FORMAT_FORCE;
    ERR(STN_E_DRIVES, stn_format(&opts));
    drives_remove(&one);
    drives_remove(&two);
}

static void a_pool_that_is_open(void)
{
    struct stn_format_opts opts;
    stn_pool *pool;
    struct drives drives;
    if (!test_has_files())
        return;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    OPEN_ERR(EBUSY, drives.addresses, 1);
    CLEAR(opts);
    opts.drives = drives.addresses;
    opts.drive_count = 1;
    opts.flags = STN_FORMAT_FORCE;
    ERR(EBUSY, stn_format(&opts));
    OK(stn_pool_close(pool));
    drives_remove(&drives);
}

static void drives_without_a_pool_or_with_other_data(void)
{
    static const char text[] = "\x7f" "ELF: not a pool";
    struct stn_format_opts opts;
    struct drives drives;
    if (!test_has_files())
        return;
    drives_make(&drives, 1);
    CHECK(truncate(drives.paths[0], 0) == 0);
    CHECK(truncate(drives.paths[0], 64 * (off_t)MIB) == 0);
    OPEN_ERR(STN_E_NOT_FORMATTED, drives.addresses, 1);
    overwrite(drives.paths[0], 0, text, sizeof(text));
    CLEAR(opts);
    opts.drives = drives.addresses;
    opts.drive_count = 1;
    ERR(STN_E_REFUSED, stn_format(&opts));
    opts.flags = STN_FORMAT_FORCE;
    OK(stn_format(&opts));
    drives_remove(&drives);
}

static void drives_of_another_back_end(void)
{
    static const char *const drive[] = {"pcie:0000:ff:1f.7"};
    struct stn_format_opts opts;
    if (stn_has_spdk())
        return;
    OPEN_ERR(STN_E_ENVIRONMENT, drive, 1);
    CLEAR(opts);
    opts.drives = drive;
    opts.drive_count = 1;
    ERR(STN_E_ENVIRONMENT, stn_format(&opts));
}

static void a_file_that_was_cut(void)
{
    struct stn_restore_opts restore;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    stn_pool *pool;
    stn_session *session;
    uint64_t checkpoint;
    struct drives drives;
    uint32_t key;
    void *memory;
    static char bytes[4 * MIB];
    if (!test_has_files())
        return;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 4 * MIB);
    OK(stn_open(session, "a@1", 0, &checkpoint, NULL));
    OK(stn_buf_alloc(session, 4 * MIB, &memory, &key));
    CHECK(truncate(drives.paths[0], 5 * (off_t)MIB) == 0);
    sqe_transfer(&sqe, STN_OP_READ, checkpoint, key, 4 * MIB, 0);
    cqe = session_run(session, &sqe);
    CQE_ERR(STN_E_SHORT, &cqe);
    CHECK(cqe.aux % MIB == 0 && cqe.aux < 4 * MIB);
    CHECK(truncate(drives.paths[0], 64 * (off_t)MIB) == 0);
    /* Its data is gone: zeroes are not what was written. */
    cqe = session_run(session, &sqe);
    CQE_ERR(STN_E_DAMAGED, &cqe);
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));

    drives_remove(&drives);
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 4 * MIB);
    CLEAR(restore);
    restore.name = "a@1";
    CHECK(truncate(drives.paths[0], 0) == 0);
    CHECK(truncate(drives.paths[0], 64 * (off_t)MIB) == 0);
    {
        stn_checkpoint *description;
        ERR(STN_E_DAMAGED, stn_checkpoint_show(pool, "a@1", &description));
        ERR(STN_E_DAMAGED, stn_open(session, "a@1", 0, &checkpoint, NULL));
        ERR(STN_E_DAMAGED, stn_restore(pool, &restore, bytes, sizeof(bytes)));
    }
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    drives_remove(&drives);

    drives_make(&drives, 1);
    CHECK(truncate(drives.paths[0], 40 * (off_t)MIB) == 0);
    OPEN_ERR(STN_E_SHORT, drives.addresses, 1);
    drives_remove(&drives);
}

/* Data only: metadata lies below. */
static void data_that_was_cut_off(void)
{
    struct stn_restore_opts restore;
    struct stn_pool_info info;
    stn_pool *pool;
    stn_session *session;
    struct drives drives;
    uint64_t data;
    int fd;
    static char bytes[4 * MIB];
    if (!test_has_files())
        return;
    drives_make(&drives, 1);
    pool = pool_open(&drives);
    session = session_make(pool);
    save(session, "a@1", 4 * MIB);
    CLEAR(info);
    OK(stn_pool_info(pool, &info));
    /* The data area ends 3 MiB before the end. */
    data = 61 * MIB - info.capacity_bytes;
    CLEAR(restore);
    restore.name = "a@1";
    CHECK(OK(stn_restore(pool, &restore, bytes, sizeof(bytes))) == sizeof(bytes));
    CHECK(truncate(drives.paths[0], (off_t)data) == 0);
    ERR(STN_E_SHORT, stn_restore(pool, &restore, bytes, sizeof(bytes)));
    CHECK(truncate(drives.paths[0], 64 * (off_t)MIB) == 0);
    ERR(STN_E_DAMAGED, stn_restore(pool, &restore, bytes, sizeof(bytes)));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    /* All copies of what names the checkpoints. */
    fd = open(drives.paths[0], O_RDWR);
    CHECK(fd >= 0);
    CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE, FRONT_ROOTS, (off_t)(60 * MIB - FRONT_ROOTS)) == 0);
    CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 60 * (off_t)MIB, 2 * (off_t)MIB) == 0);
    CHECK(close(fd) == 0);
    OPEN_ERR(STN_E_DAMAGED, drives.addresses, 1);
    drives_remove(&drives);
}

/* A loop device on a file in a file system of 80 MiB of its own. */
struct loop {
    char directory[256], backing[300], filler[300], device[64];
};

static int loop_make(struct loop *loop)
{
    const char *parent = getenv("STN_TEST_DIRECTORY");
    FILE *pipe;
    char command[400];
    if (geteuid() != 0 || !test_has_files()) {
        printf("(left out: needs root and no other drives) ");
        return 0;
    }
    snprintf(loop->directory, sizeof(loop->directory), "%s/stn-loop-XXXXXX",
             parent ? parent : "/var/tmp");
    CHECK(mkdtemp(loop->directory) != NULL);
    CHECK(mount("stn-test", loop->directory, "tmpfs", 0, "size=80m") == 0);
    snprintf(loop->backing, sizeof(loop->backing), "%s/backing", loop->directory);
    snprintf(loop->filler, sizeof(loop->filler), "%s/filler", loop->directory);
    CHECK(run("truncate -s 64M %s", loop->backing) == 0);
    snprintf(command, sizeof(command), "losetup --find --show %s", loop->backing);
    pipe = popen(command, "r");
    CHECK(pipe != NULL && fgets(loop->device, sizeof(loop->device), pipe) != NULL);
    CHECK(pclose(pipe) == 0);
    loop->device[strcspn(loop->device, "\n")] = '\0';
    return 1;
}

static void loop_remove(struct loop *loop)
{
    CHECK(run("losetup --detach %s", loop->device) == 0);
    /* The device closes its file a moment later. */
    while (umount(loop->directory) != 0) {
        CHECK(errno == EBUSY);
        usleep(10000);
    }
    CHECK(rmdir(loop->directory) == 0);
}

/* From here on, writes of what was never written fail. */
static void loop_fill(struct loop *loop)
{
    run("dd if=/dev/zero of=%s bs=64k status=none 2>/dev/null", loop->filler);
    run("dd if=/dev/zero of=%s bs=4k oflag=append conv=notrunc status=none 2>/dev/null",
        loop->filler);
}

static void loop_empty(struct loop *loop)
{
    CHECK(unlink(loop->filler) == 0);
}

/* A loop device on a memfd, which refuses to be written once it is sealed. */
struct sealed {
    int memfd;
    char device[64];
};

static int sealed_make(struct sealed *sealed)
{
    char command[128];
    FILE *pipe;
    if (geteuid() != 0 || !test_has_files()) {
        printf("(left out: needs root and no other drives) ");
        return 0;
    }
    sealed->memfd = memfd_create("stn-test", MFD_ALLOW_SEALING);
    CHECK(sealed->memfd >= 0 && ftruncate(sealed->memfd, 64 * (off_t)MIB) == 0);
    snprintf(command, sizeof(command), "losetup --find --show /proc/%d/fd/%d", (int)getpid(),
             sealed->memfd);
    pipe = popen(command, "r");
    CHECK(pipe != NULL && fgets(sealed->device, sizeof(sealed->device), pipe) != NULL);
    CHECK(pclose(pipe) == 0);
    sealed->device[strcspn(sealed->device, "\n")] = '\0';
    return 1;
}

/* From here on every write fails. */
static void sealed_close(struct sealed *sealed)
{
    CHECK(fcntl(sealed->memfd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
}

static void sealed_remove(struct sealed *sealed)
{
    CHECK(run("losetup --detach %s", sealed->device) == 0);
    CHECK(close(sealed->memfd) == 0);
}

static void drives_that_fail_writes(void)
{
    struct stn_save_shard shard;
    struct stn_save_opts save_opts;
    struct stn_format_opts format;
    struct stn_pool_opts opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct sealed sealed;
    const char *drives[1];
    stn_pool *pool;
    uint64_t checkpoint;
    stn_session *session;
    uint32_t key;
    void *memory;
    if (!sealed_make(&sealed))
        return;
    drives[0] = sealed.device;
    CLEAR(format);
    format.drives = drives;
    format.drive_count = 1;
    OK(stn_format(&format));
    CLEAR(opts);
    opts.drives = drives;
    opts.drive_count = 1;
    opts.huge_pages = STN_HUGE_OFF;
    OK(stn_pool_open(&opts, &pool));
    session = session_make(pool);
    save(session, "a@1", 2 * MIB);
    checkpoint = begin(session, "a@2", 2 * MIB);
    OK(stn_buf_alloc(session, 2 * MIB, &memory, &key));
    memset(memory, 1, 2 * MIB);
    sealed_close(&sealed);
    sqe_transfer(&sqe, STN_OP_WRITE, checkpoint, key, 2 * MIB, 0);
    cqe = session_run(session, &sqe);
    CQE_ERR(EIO, &cqe);
    memset(&shard, 0, sizeof(shard));
    shard.name = "one";
    shard.bytes = memory;
    shard.len_bytes = 2 * MIB;
    CLEAR(save_opts);
    save_opts.name = "a@3";
    save_opts.shards = &shard;
    save_opts.shard_count = 1;
    save_opts.shard_size = sizeof(shard);
    ERR(EIO, stn_save(pool, &save_opts));
    ERR(EIO, stn_remove(pool, "a@1"));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    ERR(EIO, stn_pool_open(&opts, &pool));
    format.flags = STN_FORMAT_FORCE;
    ERR(EIO, stn_format(&format));
    sealed_remove(&sealed);
}

static void drives_that_fail_reads(void)
{
    struct stn_restore_opts restore;
    struct stn_format_opts format;
    struct stn_pool_opts opts;
    struct stn_pool_info info;
    struct loop loop;
    const char *drives[1];
    stn_pool *pool;
    stn_session *session;
    static char bytes[2 * MIB];
    if (!loop_make(&loop))
        return;
    drives[0] = loop.device;
    CLEAR(format);
    format.drives = drives;
    format.drive_count = 1;
    OK(stn_format(&format));
    CLEAR(opts);
    opts.drives = drives;
    opts.drive_count = 1;
    opts.huge_pages = STN_HUGE_OFF;
    OK(stn_pool_open(&opts, &pool));
    session = session_make(pool);
    save(session, "a@1", 2 * MIB);
    CLEAR(info);
    OK(stn_pool_info(pool, &info));
    CHECK(truncate(loop.backing, (off_t)(61 * MIB - info.capacity_bytes)) == 0);
    CLEAR(restore);
    restore.name = "a@1";
    ERR(EIO, stn_restore(pool, &restore, bytes, sizeof(bytes)));
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    loop_remove(&loop);
}

/* The root cannot be written, and everything before it can: what the drive has is unknown. */
static void a_root_write_that_fails(void)
{
    struct stn_save_opts save_opts;
    struct stn_format_opts format;
    struct stn_pool_opts opts;
    struct stn_begin_opts begin_opts;
    struct stn_sqe sqe;
    struct stn_cqe cqe;
    struct loop loop;
    const char *drives[1];
    stn_pool *pool;
    uint64_t checkpoints[2];
    stn_session *session;
    uint32_t key;
    void *memory;
    int fd, i;
    if (!loop_make(&loop))
        return;
    drives[0] = loop.device;
    CLEAR(format);
    format.drives = drives;
    format.drive_count = 1;
    OK(stn_format(&format));
    CLEAR(opts);
    opts.drives = drives;
    opts.drive_count = 1;
    opts.huge_pages = STN_HUGE_OFF;
    OK(stn_pool_open(&opts, &pool));
    session = session_make(pool);
    save(session, "a@1", 4096);
    OK(stn_buf_alloc(session, 4096, &memory, &key));
    memset(memory, 1, 4096);
    for (i = 0; i < 2; i++) {
        checkpoints[i] = begin(session, i == 0 ? "a@2" : "a@3", 4096);
        sqe_transfer(&sqe, STN_OP_WRITE, checkpoints[i], key, 4096, 0);
        cqe = session_run(session, &sqe);
        CHECK(cqe.result == 4096);
    }
    /* Everything is allocated but the rings of roots: before the end, and at their fixed place. */
    fd = open(loop.backing, O_RDWR);
    CHECK(fd >= 0);
    CHECK(fallocate(fd, 0, 0, 64 * (off_t)MIB) == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FRONT_ROOTS, (off_t)MIB) == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 61 * (off_t)MIB,
                    (off_t)MIB) == 0);
    CHECK(close(fd) == 0);
    loop_fill(&loop);
    memset(&sqe, 0, sizeof(sqe));
    sqe.opcode = STN_OP_COMMIT;
    sqe.checkpoint = checkpoints[0];
    cqe = session_run(session, &sqe);
    CHECK(cqe.result < 0);
    sqe.checkpoint = checkpoints[1];
    cqe = session_run(session, &sqe);
    CQE_ERR(STN_E_POISONED, &cqe);
    CLEAR(begin_opts);
    begin_opts.name = "a@4";
    begin_opts.len_bytes = 1;
    ERR(STN_E_POISONED, stn_begin(session, &begin_opts, &checkpoints[0]));
    CLEAR(save_opts);
    save_opts.name = "a@4";
    ERR(STN_E_POISONED, stn_save(pool, &save_opts));
    ERR(STN_E_POISONED, stn_remove(pool, "a@1"));
    loop_empty(&loop);
    OK(stn_session_destroy(session));
    OK(stn_pool_close(pool));
    loop_remove(&loop);
}

static const struct test tests[] = {
    {"drives_that_are_not_those_of_one_pool", drives_that_are_not_those_of_one_pool},
    {"a_pool_that_is_open", a_pool_that_is_open},
    {"drives_without_a_pool_or_with_other_data", drives_without_a_pool_or_with_other_data},
    {"drives_of_another_back_end", drives_of_another_back_end},
    {"a_file_that_was_cut", a_file_that_was_cut},
    {"data_that_was_cut_off", data_that_was_cut_off},
    {"drives_that_fail_writes", drives_that_fail_writes},
    {"drives_that_fail_reads", drives_that_fail_reads},
    {"a_root_write_that_fails", a_root_write_that_fails},
};

TEST_MAIN(tests)
