/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with a poll loop of its own. It watches the descriptor of a session and a timer, which stands
 * for everything else that it does.
 *
 *   cc epoll.c $(pkg-config --cflags --libs stanchion) -o epoll
 *   ./epoll DRIVE...
 *
 * With STN_EXAMPLE_FORMAT=1 in the environment the drives are formatted first.
 */
#define _POSIX_C_SOURCE 200809L
#include <stanchion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MIB (1024u * 1024u)
#define CHUNKS 12u
#define BUFFERS 3u

static void check(int64_t result, const char *what)
{
    char detail[512];
    if (result >= 0)
        return;
    stn_last_error(detail, sizeof(detail));
    fprintf(stderr, "%s: %s: %s\n", what, stn_strerror((int)result), detail);
    exit(1);
}

/* A save that goes on as completions come. */
struct save {
    stn_session *session;
    uint64_t checkpoint;
    uint64_t chunk_bytes;
    uint32_t keys[BUFFERS];
    void *memory[BUFFERS];
    uint32_t next, written;
    int done;
};

static void submit(struct save *save, const struct stn_sqe *entry)
{
    int accepted = stn_submit(save->session, entry, 1);
    check(accepted, "submit");
    if (accepted == 0) { /* there are never more than BUFFERS entries in flight */
        fprintf(stderr, "the session is full\n");
        exit(1);
    }
}

static void submit_write(struct save *save, uint32_t buffer)
{
    struct stn_sqe entry;
    memset(save->memory[buffer], (int)save->next, save->chunk_bytes);
    memset(&entry, 0, sizeof(entry));
    entry.opcode = STN_OP_WRITE;
    entry.buffer = save->keys[buffer];
    entry.checkpoint = save->checkpoint;
    entry.len_bytes = save->chunk_bytes;
    entry.segment_offset_bytes = save->next * save->chunk_bytes;
    entry.user_data = buffer; /* says which buffer is free again */
    submit(save, &entry);
    save->next++;
}

static void submit_commit(struct save *save)
{
    struct stn_sqe entry;
    memset(&entry, 0, sizeof(entry));
    entry.opcode = STN_OP_COMMIT;
    entry.checkpoint = save->checkpoint;
    entry.user_data = BUFFERS;
    submit(save, &entry);
}

/* Takes completions until there are none: only then the descriptor stops being readable. */
static void on_completions(struct save *save)
{
    struct stn_cqe completions[4];
    int i, count;
    while ((count = stn_peek(save->session, completions, 4)) != 0) {
        check(count, "peek");
        for (i = 0; i < count; i++) {
            if (completions[i].result < 0) {
                fprintf(stderr, "save: %s\n", stn_strerror((int)completions[i].result));
                exit(1);
            }
            if (completions[i].user_data == BUFFERS) {
                save->done = 1;
            } else {
                save->written++;
                if (save->next < CHUNKS)
                    submit_write(save, (uint32_t)completions[i].user_data);
                else if (save->written == CHUNKS)
                    submit_commit(save);
            }
        }
    }
}

static void watch(int poller, int fd)
{
    struct epoll_event event;
    memset(&event, 0, sizeof(event));
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) {
        perror("epoll_ctl");
        exit(1);
    }
}

static stn_pool *open_pool(const char *const *drives, uint32_t drive_count)
{
    const char *do_format = getenv("STN_EXAMPLE_FORMAT");
    struct stn_pool_opts opts;
    stn_pool *pool;
    if (do_format && strcmp(do_format, "1") == 0) {
        struct stn_format_opts format;
        memset(&format, 0, sizeof(format));
        format.size = sizeof(format);
        format.flags = STN_FORMAT_FORCE;
        format.drives = drives;
        format.drive_count = drive_count;
        format.create_bytes = 64 * (uint64_t)MIB;
        check(stn_format(&format), "format");
    }
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.drives = drives;
    opts.drive_count = drive_count;
    opts.huge_pages = STN_HUGE_PREFERRED;
    check(stn_pool_open(&opts, &pool), "open");
    return pool;
}

int main(int argc, char **argv)
{
    struct itimerspec every_millisecond;
    struct stn_checkpoint_info latest;
    struct stn_begin_opts opts;
    struct stn_pool_info info;
    struct save save;
    stn_pool *pool;
    char name[STN_NAME_BYTES];
    uint64_t ticks = 0;
    uint32_t i;
    int poller, timer, completions;

    if (argc < 2) {
        fprintf(stderr, "usage: %s DRIVE...\n", argv[0]);
        return 2;
    }
    pool = open_pool((const char *const *)(argv + 1), (uint32_t)(argc - 1));
    memset(&info, 0, sizeof(info));
    info.size = sizeof(info);
    check(stn_pool_info(pool, &info), "pool info");
    memset(&save, 0, sizeof(save));
    save.chunk_bytes = info.chunk_bytes;
    check(stn_session_create(pool, NULL, &save.session), "session");
    for (i = 0; i < BUFFERS; i++)
        check(stn_buf_alloc(save.session, save.chunk_bytes, &save.memory[i], &save.keys[i]), "alloc");

    memset(&latest, 0, sizeof(latest));
    latest.size = sizeof(latest);
    if (stn_latest(pool, "epoll", &latest) < 0)
        latest.step = 0;
    snprintf(name, sizeof(name), "epoll@%llu", (unsigned long long)latest.step + 1);
    memset(&opts, 0, sizeof(opts));
    opts.size = sizeof(opts);
    opts.name = name;
    opts.len_bytes = CHUNKS * save.chunk_bytes;
    check(stn_begin(save.session, &opts, &save.checkpoint), "begin");

    completions = stn_session_eventfd(save.session);
    check(completions, "eventfd");
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (poller < 0 || timer < 0) {
        perror("epoll_create1 or timerfd_create");
        return 1;
    }
    memset(&every_millisecond, 0, sizeof(every_millisecond));
    every_millisecond.it_interval.tv_nsec = every_millisecond.it_value.tv_nsec = 1000000;
    timerfd_settime(timer, 0, &every_millisecond, NULL);
    watch(poller, completions);
    watch(poller, timer);

    for (i = 0; i < BUFFERS; i++)
        submit_write(&save, i);
    while (!save.done) {
        struct epoll_event events[2];
        int j, count = epoll_wait(poller, events, 2, -1);
        for (j = 0; j < count; j++) {
            uint64_t expired;
            if (events[j].data.fd == completions)
                on_completions(&save);
            else if (read(timer, &expired, sizeof(expired)) == (ssize_t)sizeof(expired))
                ticks += expired;
        }
    }
    printf("saved %s in %u writes, and did something else %llu times\n", name, CHUNKS,
           (unsigned long long)ticks);

    close(timer);
    close(poller);
    check(stn_session_destroy(save.session), "destroy");
    check(stn_pool_close(pool), "close");
    return 0;
}
