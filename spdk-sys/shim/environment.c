/* SPDX-License-Identifier: Apache-2.0 */
/* The environment and its memory. */

#define _GNU_SOURCE /* sched_getaffinity, fopencookie */

#include "internal.h"

#include <sched.h>
#include <stdarg.h>
#include <sys/types.h>

/* From DPDK, whose headers SPDK does not install. */
extern int rte_openlog_stream(FILE *stream) __attribute__((weak));

static atomic_bool env_was_requested;
static atomic_bool env_is_ready;
/* Whether a device may need an address for its DMA. Set before env_is_ready. */
static atomic_bool env_has_pci;

/* Receives messages; NULL: they go to stderr. Set once, before SPDK starts. */
static stn_spdk_log_fn log_to;
/* Sends the direct output of DPDK and of SPDK's start to log_to. */
static FILE *log_stream;

/* "[N]" for the first core that the calling thread may run on. */
static void first_allowed_core(char *text, size_t size)
{
    cpu_set_t allowed;
    int core = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        while (core < CPU_SETSIZE - 1 && !CPU_ISSET(core, &allowed)) {
            core++;
        }
        if (!CPU_ISSET(core, &allowed)) {
            core = 0;
        }
    }
    snprintf(text, size, "[%d]", core);
}

/*
 * Before v22.05 SPDK announces itself on standard output, which belongs to the program: send that to stderr, or discard
 * it. Its output on stderr goes to the log, if there is one.
 * Only C's stdio is redirected, during the call; the file descriptors do not change.
 */
static int env_init_off_stdout(const struct spdk_env_opts *opts, bool quiet)
{
#if !SPDK_AT_LEAST(22, 5) && defined(__GLIBC__)
    FILE *program_stdout = stdout;
    FILE *program_stderr = stderr;
    FILE *nowhere = quiet ? fopen("/dev/null", "w") : NULL;
    int rc;

    stdout = nowhere != NULL ? nowhere : stderr;
    stderr = log_stream != NULL ? log_stream : stderr;
    rc = spdk_env_init(opts);
    stdout = program_stdout;
    stderr = program_stderr;
    if (nowhere != NULL) {
        fclose(nowhere);
    }
    return rc;
#else
    (void)quiet;
    return spdk_env_init(opts);
#endif
}

int stn_spdk_env_init(const struct stn_spdk_env_options *options)
{
    /* Static: SPDK releases differ in whether they copy these strings. */
    static char core[16];
    static char eal_argument[] = "--log-level=lib.eal:4";
    struct spdk_env_opts opts;
    int rc;

    if (atomic_exchange(&env_was_requested, true)) {
        return -EALREADY;
    }
    memset(&opts, 0, sizeof(opts));
#if SPDK_AT_LEAST(24, 9)
    opts.opts_size = sizeof(opts);
#endif
    spdk_env_opts_init(&opts);
    opts.name = options->name != NULL ? options->name : "stanchion";
    first_allowed_core(core, sizeof(core));
    opts.core_mask = options->core_mask != NULL ? options->core_mask : core;
    opts.shm_id = -1;
    if (options->mem_size_mib > INT32_MAX) {
        return -EINVAL;
    }
    if (options->mem_size_mib != 0) {
        opts.mem_size = (int)options->mem_size_mib;
    }
    opts.no_pci = options->no_pci;
    opts.unlink_hugepage = true;
    opts.hugedir = options->huge_dir;
    opts.iova_mode = options->iova_mode;
    if (options->quiet) {
        opts.env_context = eal_argument;
    }
    rc = env_init_off_stdout(&opts, options->quiet);
    if (rc != 0) {
        return errno_of(rc);
    }
    atomic_store(&env_has_pci, !options->no_pci);
    atomic_store(&env_is_ready, true);
    return 0;
}

bool stn_spdk_env_is_ready(void)
{
    return atomic_load(&env_is_ready);
}

void stn_spdk_env_fini(void)
{
    if (atomic_exchange(&env_is_ready, false)) {
        spdk_env_fini();
    }
}

void stn_spdk_unaffinitize_thread(void)
{
    spdk_unaffinitize_thread();
}

void stn_spdk_set_log_level(int level)
{
    if (level < SPDK_LOG_DISABLED) {
        level = SPDK_LOG_DISABLED;
    } else if (level > SPDK_LOG_INFO) {
        level = SPDK_LOG_INFO;
    }
    spdk_log_set_print_level((enum spdk_log_level)level);
    spdk_log_set_level(SPDK_LOG_DISABLED);
}

/* An SPDK message as one line, truncated to the buffer. */
static void on_message(int level, const char *file, const int line, const char *func, const char *format, va_list args)
{
    char text[1024];

    (void)file;
    (void)line;
    (void)func;
    /* With a log function SPDK passes messages of every level. */
    if (level > (int)spdk_log_get_print_level() || vsnprintf(text, sizeof(text), format, args) < 0) {
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    log_to(level, text);
}

/* Called under the stream's lock. */
static ssize_t on_text(void *cookie, const char *text, size_t size)
{
    static char line[1024];
    static size_t length;

    (void)cookie;
    for (size_t at = 0; at < size; at++) {
        if (text[at] == '\n') {
            line[length] = '\0';
            length = 0;
            if (line[0] != '\0') {
                log_to(SPDK_LOG_ERROR, line);
            }
        } else if (length < sizeof(line) - 1) {
            line[length++] = text[at];
        }
    }
    return (ssize_t)size;
}

int stn_spdk_set_log(stn_spdk_log_fn log)
{
    const cookie_io_functions_t functions = {.write = on_text};

    log_stream = fopencookie(NULL, "w", functions);
    if (log_stream == NULL) {
        return -ENOMEM;
    }
    setvbuf(log_stream, NULL, _IOLBF, BUFSIZ);
    log_to = log;
    spdk_log_open(on_message);
    if (rte_openlog_stream != NULL) {
        rte_openlog_stream(log_stream);
    }
    return 0;
}

const char *stn_spdk_version_string(void)
{
    return SPDK_VERSION_STRING;
}

int stn_spdk_mem_register(void *start, size_t length)
{
    int rc = spdk_mem_register(start, length);

    if (rc == 0 && !stn_spdk_mem_is_reachable(start, length)) {
        spdk_mem_unregister(start, length);
        return -EFAULT;
    }
    return rc;
}

int stn_spdk_mem_unregister(void *start, size_t length)
{
    return spdk_mem_unregister(start, length);
}

bool stn_spdk_mem_is_reachable(const void *start, size_t length)
{
    const uint8_t *at = start;

    /* Since v26.01 there is no map to ask without PCI: every address would seem unreachable. */
    if (!atomic_load(&env_has_pci)) {
        return true;
    }
    while (length > 0) {
        uint64_t reachable = length;

        /* v20.07 takes a pointer to non-const and does not write through it. */
        if (spdk_vtophys((void *)(uintptr_t)at, &reachable) == SPDK_VTOPHYS_ERROR || reachable == 0) {
            return false;
        }
        if (reachable >= length) {
            return true;
        }
        at += reachable;
        length -= reachable;
    }
    return true;
}

void *stn_spdk_dma_zmalloc(size_t length, size_t align)
{
    /* The third argument must be NULL and -1 is any node, under each release's own name for it. */
    return spdk_zmalloc(length, align, NULL, -1, SPDK_MALLOC_DMA);
}

void stn_spdk_dma_free(void *memory)
{
    spdk_free(memory);
}
