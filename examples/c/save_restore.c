/* SPDX-License-Identifier: Apache-2.0
 *
 * Saves two tensors as one checkpoint, and restores them: the whole segment, and one tensor alone. Each
 * is one call that blocks; overlap.c and epoll.c save while the program does something else.
 *
 *   cc save_restore.c $(pkg-config --cflags --libs stanchion) -o save_restore
 *   ./save_restore DRIVE...
 *
 * DRIVE is the address of a drive of a pool made by `stanchion format`. With STN_EXAMPLE_FORMAT=1 in
 * the environment the drives are formatted first, and files that do not exist are made.
 */
#include <stanchion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024u * 1024u)
#define WEIGHTS_BYTES (5u * MIB)
#define BIAS_BYTES (4096u * 4u)
#define SEGMENT_BYTES (WEIGHTS_BYTES + BIAS_BYTES)

/* Ends the program with the library's own words when a call failed. */
static void check(int64_t result, const char *what)
{
    char detail[512];
    if (result >= 0)
        return;
    stn_last_error(detail, sizeof(detail));
    fprintf(stderr, "%s: %s: %s\n", what, stn_strerror((int)result), detail);
    exit(1);
}

static void format(const char *const *drives, uint32_t drive_count)
{
    struct stn_format_opts opts;
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.drives = drives;
    opts.drive_count = drive_count;
    opts.flags = STN_FORMAT_FORCE;
    opts.create_bytes = 64 * (uint64_t)MIB;
    check(stn_format(&opts), "format");
}

static stn_pool *open_pool(const char *const *drives, uint32_t drive_count)
{
    struct stn_pool_opts opts;
    stn_pool *pool;
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.drives = drives;
    opts.drive_count = drive_count;
    opts.huge_pages = STN_HUGE_PREFERRED;
    check(stn_pool_open(&opts, &pool), "open");
    return pool;
}

/* The bytes of the segment at a place. */
static unsigned char byte_at(uint64_t at)
{
    return (unsigned char)(at * 7 + at / 256);
}

static void save(stn_pool *pool, const char *name)
{
    static const uint64_t weights_shape[] = {1280, 1024}, bias_shape[] = {4096};
    static unsigned char weights[WEIGHTS_BYTES], bias[BIAS_BYTES];
    struct stn_save_shard shards[2];
    struct stn_save_opts opts;
    uint64_t i;

    for (i = 0; i < WEIGHTS_BYTES; i++)
        weights[i] = byte_at(i);
    for (i = 0; i < BIAS_BYTES; i++)
        bias[i] = byte_at(WEIGHTS_BYTES + i);

    memset(shards, 0, sizeof(shards));
    shards[0].name = "weights";
    shards[0].bytes = weights;
    shards[0].len_bytes = WEIGHTS_BYTES;
    shards[0].dtype = "F32";
    shards[0].shape = weights_shape;
    shards[0].dimensions = 2;
    shards[1].name = "bias";
    shards[1].bytes = bias;
    shards[1].len_bytes = BIAS_BYTES;
    shards[1].dtype = "F32";
    shards[1].shape = bias_shape;
    shards[1].dimensions = 1;

    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.name = name;
    opts.shards = shards;
    opts.shard_count = 2;
    opts.shard_size = sizeof(struct stn_save_shard);
    check(stn_save(pool, &opts), "save"); /* from here on the checkpoint is durable */
    printf("saved %s\n", name);
}

static void restore(stn_pool *pool, const char *name, const char *shard, uint64_t offset,
                    uint64_t len_bytes)
{
    struct stn_restore_opts opts;
    unsigned char *bytes = (unsigned char *)malloc(len_bytes);
    uint64_t i;
    int64_t got;

    if (bytes == NULL)
        exit(1);
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.name = name;
    opts.shard = shard;
    got = stn_restore(pool, &opts, bytes, len_bytes);
    check(got, "restore");
    for (i = 0; i < (uint64_t)got; i++) {
        if (bytes[i] != byte_at(offset + i)) {
            fprintf(stderr, "byte %llu is not what was saved\n", (unsigned long long)(offset + i));
            exit(1);
        }
    }
    printf("restored %lld bytes of %s, %s\n", (long long)got, name, shard ? shard : "all of it");
    free(bytes);
}

int main(int argc, char **argv)
{
    const char *const *drives = (const char *const *)(argv + 1);
    const char *do_format = getenv("STN_EXAMPLE_FORMAT");
    uint32_t drive_count = (uint32_t)(argc - 1);
    struct stn_checkpoint_info info;
    stn_pool *pool;
    char name[STN_NAME_BYTES];

    if (drive_count == 0) {
        fprintf(stderr, "usage: %s DRIVE...\n", argv[0]);
        return 2;
    }
    if (do_format && strcmp(do_format, "1") == 0)
        format(drives, drive_count);
    pool = open_pool(drives, drive_count);

    /* The next step after the newest that there is. */
    memset(&info, 0, sizeof(info));
    info.size = sizeof(info);
    if (stn_latest(pool, "example", &info) < 0)
        info.step = 0;
    snprintf(name, sizeof(name), "example@%llu", (unsigned long long)info.step + 1);
    save(pool, name);
    restore(pool, name, NULL, 0, SEGMENT_BYTES);
    restore(pool, name, "bias", WEIGHTS_BYTES, BIAS_BYTES);

    check(stn_pool_close(pool), "close");
    return 0;
}
