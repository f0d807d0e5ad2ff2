/* SPDX-License-Identifier: Apache-2.0
 *
 * A training loop that saves every iteration while the next one computes.
 *
 * The checkpoint of iteration i is written and committed while iteration i + 1 computes, and is waited
 * for only before its buffer is used again. So a save costs the loop only the time by which it is
 * longer than a compute step.
 *
 *   cc overlap.c $(pkg-config --cflags --libs stanchion) -o overlap
 *   ./overlap DRIVE...
 *
 * With STN_EXAMPLE_FORMAT=1 in the environment the drives are formatted first.
 */
#include <stanchion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024u * 1024u)
#define MODEL_BYTES (8u * MIB)
#define ITERATIONS 6
#define KEPT 2 /* checkpoints that stay */

static void check(int64_t result, const char *what)
{
    char detail[512];
    if (result >= 0)
        return;
    stn_last_error(detail, sizeof(detail));
    fprintf(stderr, "%s: %s: %s\n", what, stn_strerror((int)result), detail);
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A save in flight: its handle and the completions that it still waits for, or nothing. */
struct save {
    uint64_t checkpoint;
    int outstanding;
};

static void save_begin(stn_session *session, struct save *save, uint32_t key, uint64_t step)
{
    struct stn_begin_opts opts;
    struct stn_sqe entries[2];
    char name[STN_NAME_BYTES];

    snprintf(name, sizeof(name), "overlap@%llu", (unsigned long long)step);
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.name = name;
    opts.len_bytes = MODEL_BYTES;
    check(stn_begin(session, &opts, &save->checkpoint), "begin");

    /* The commit waits for the write by itself. */
    memset(entries, 0, sizeof(entries));
    entries[0].opcode = STN_OP_WRITE;
    entries[0].buffer = key;
    entries[0].checkpoint = save->checkpoint;
    entries[0].len_bytes = MODEL_BYTES;
    entries[1].opcode = STN_OP_COMMIT;
    entries[1].checkpoint = save->checkpoint;
    check(stn_submit(session, entries, 2), "submit");
    save->outstanding = 2;
}

/* Waits until the checkpoint is durable: then its buffer may be used. */
static void save_end(stn_session *session, struct save *save)
{
    struct stn_cqe completions[2];
    int i, count;
    while (save->outstanding > 0) {
        count = stn_wait(session, completions, 1, 2, -1);
        check(count, "wait");
        for (i = 0; i < count; i++) {
            if (completions[i].result < 0) {
                fprintf(stderr, "save: %s\n", stn_strerror((int)completions[i].result));
                exit(1);
            }
        }
        save->outstanding -= count;
    }
    if (save->checkpoint != 0)
        check(stn_close(session, save->checkpoint), "close");
    save->checkpoint = 0;
}

/* Stands for a training step. */
static void compute(float *model, uint64_t step)
{
    double until = seconds() + 0.05;
    size_t i = 0, count = MODEL_BYTES / sizeof(float);
    do {
        model[i % count] += (float)step;
        i += 4097;
    } while (i % 1024 != 0 || seconds() < until);
}

int main(int argc, char **argv)
{
    const char *const *drives = (const char *const *)(argv + 1);
    const char *do_format = getenv("STN_EXAMPLE_FORMAT");
    struct stn_pool_opts opts;
    struct stn_checkpoint_info latest;
    struct save save;
    stn_pool *pool;
    stn_session *session;
    float *model;
    void *memory;
    double started, waited = 0, computed = 0;
    uint64_t first, step;
    uint32_t key;

    if (argc < 2) {
        fprintf(stderr, "usage: %s DRIVE...\n", argv[0]);
        return 2;
    }
    if (do_format && strcmp(do_format, "1") == 0) {
        struct stn_format_opts format;
        memset(&format, 0, sizeof(format));
        format.size = sizeof(format);
        format.flags = STN_FORMAT_FORCE;
        format.drives = drives;
        format.drive_count = (uint32_t)(argc - 1);
        format.create_bytes = 64 * (uint64_t)MIB;
        check(stn_format(&format), "format");
    }
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.drives = drives;
    opts.drive_count = (uint32_t)(argc - 1);
    opts.huge_pages = STN_HUGE_PREFERRED;
    check(stn_pool_open(&opts, &pool), "open");
    check(stn_session_create(pool, NULL, &session), "session");
    check(stn_buf_alloc(session, MODEL_BYTES, &memory, &key), "alloc");
    memset(memory, 0, MODEL_BYTES);
    model = (float *)malloc(MODEL_BYTES);
    if (model == NULL)
        return 1;
    memset(model, 0, MODEL_BYTES);

    memset(&latest, 0, sizeof(latest));
    latest.size = sizeof(latest);
    first = stn_latest(pool, "overlap", &latest) == 0 ? latest.step + 1 : 1;
    memset(&save, 0, sizeof(save));
    for (step = first; step < first + ITERATIONS; step++) {
        started = seconds();
        compute(model, step); /* the save of the step before is in flight */
        computed += seconds() - started;
        started = seconds();
        save_end(session, &save);
        waited += seconds() - started;
        memcpy(memory, model, MODEL_BYTES); /* a GPU would copy to here */
        if (step >= first + KEPT) {
            char old[STN_NAME_BYTES];
            snprintf(old, sizeof(old), "overlap@%llu", (unsigned long long)(step - KEPT));
            check(stn_remove(pool, old), "remove");
        }
        save_begin(session, &save, key, step);
    }
    save_end(session, &save);
    printf("%d iterations: computed %.0f ms, waited for saves %.0f ms\n", ITERATIONS,
           computed * 1e3, waited * 1e3);

    free(model);
    check(stn_session_destroy(session), "destroy");
    check(stn_pool_close(pool), "close");
    return 0;
}
