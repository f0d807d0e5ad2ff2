/* SPDX-License-Identifier: Apache-2.0 */
/**
 * libstanchion - a storage engine for deep-learning checkpoints
 *
 * A pool is a set of drives that were formatted together. A checkpoint in it is named NAME@STEP and
 * consists of one segment of bytes for each of its participants (the writers, or ranks). It becomes
 * visible all at once, when every participant has committed, or not at all.
 *
 * stn_pool_open() opens a pool. stn_save() and stn_restore() move a whole segment in one blocking
 * call. A session is for a thread that works meanwhile: it has memory that drives read and write
 * directly, and a ring, which is a queue of entries and a queue of completions. A save through a
 * session is stn_begin(), entries of STN_OP_WRITE, an entry of STN_OP_COMMIT; a restore is stn_open()
 * and entries of STN_OP_READ.
 *
 * Conventions:
 *
 *   1. Handles are opaque. A handle that was closed, or that was never one, is detected: the call
 *      returns -EBADF. For a handle that was made before a fork() and is used in the child it returns
 *      -EOWNERDEAD. A child may open a pool of its own.
 *   2. Threads: a pool may be used by any number of threads at once. A session belongs to one thread
 *      at a time; a call while another thread is inside a call on the same session returns
 *      -EBUSY. Different sessions never wait for each other.
 *   3. Calls return 0 or a count on success and a negative number on failure: a negated errno, or
 *      below -4096 a negated STN_E_ number. So do completions. stn_strerror() has a text for each;
 *      stn_last_error() has the details of the calling thread's last failed call.
 *   4. Outputs are written only on success. No call keeps a pointer that it was given, apart from
 *      stn_mem_register() and stn_set_log().
 *   5. Structures begin with their size, which the caller sets to sizeof, and are otherwise zero
 *      where the default is wanted. A library that knows a shorter structure returns -E2BIG if a
 *      field that it does not know is not zero. Fields that it cannot fill become zero. A size below
 *      that of the first version is -EINVAL, and so are unknown flags and reserved fields that are
 *      not zero.
 *   6. Memory named by an entry stays unchanged (a write) or untouched (a read) from stn_submit() until
 *      the completion was taken. Completions come in any order; a commit waits for the writes of its
 *      segment that were submitted before it.
 *   7. A write that completed is not durable. A commit that completed is: durable, and visible to
 *      stn_list_create(), stn_open() and every process after a power cut. Until then the checkpoint
 *      does not exist; if its session or its process ends before, it never will.
 *   8. Fewer entries accepted than given is back-pressure, not an error.
 *   9. No call on the path stn_submit(), stn_peek(), stn_wait() calls back, allocates or takes a lock.
 *      No function may be called from a signal handler. The library's threads block all signals but
 *      those of a fault of their own (SIGBUS, SIGSEGV, SIGFPE, SIGILL). It installs no signal handler;
 *      in a build with SPDK, SPDK installs one for SIGBUS, which it needs where a drive on PCIe is
 *      unplugged, and DPDK replaces it while it takes huge pages. A program with a handler of its own
 *      sets it after the first pool was opened. The library writes nothing to standard output or
 *      standard error.
 *  10. Sizes and offsets are bytes, times nanoseconds. Strings are UTF-8 that ends with a NUL.
 *
 * Each function's Errors section names every error that it returns. In addition any function may
 * return -STN_E_PANIC, for a defect of the library that the library detected.
 */
#ifndef STANCHION_H
#define STANCHION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; stn_version() has that of the library. */
#define STN_VERSION_MAJOR 0
#define STN_VERSION_MINOR 1
#define STN_VERSION_PATCH 0
#define STN_VERSION ((STN_VERSION_MAJOR << 16) | (STN_VERSION_MINOR << 8) | STN_VERSION_PATCH)

/* Error numbers in addition to those of errno. A number, once given, is never given to another error. */
#define STN_E_DAMAGED 4097       /* bytes on a drive are not what was written there */
#define STN_E_POISONED 4098      /* the pool refuses writes after a failed flush or root write */
#define STN_E_REMOVED 4099       /* the drive is gone */
#define STN_E_SHORT 4100         /* the drive is shorter than it was */
#define STN_E_INCOMPLETE 4101    /* a commit before every byte was written */
#define STN_E_NOT_FORMATTED 4102 /* the drive has no pool of ours */
#define STN_E_NEWER_FORMAT 4103  /* the pool needs a newer library */
#define STN_E_DRIVES 4104        /* not exactly the drives of one pool were named */
#define STN_E_REFUSED 4105       /* refused, because it could destroy data */
#define STN_E_ENVIRONMENT 4106   /* the machine is not set up for it */
#define STN_E_PANIC 4107         /* a defect of the library */
#define STN_E_OLDER_FORMAT 4108  /* the pool needs an older library */

/** A pool that is open. */
typedef struct stn_pool stn_pool;
/** What one thread saves and restores through: memory and a ring. */
typedef struct stn_session stn_session;
/** The checkpoints that a pool had at one moment. */
typedef struct stn_list stn_list;
/** What one checkpoint consists of. */
typedef struct stn_checkpoint stn_checkpoint;

/* What an entry asks for: stn_sqe.opcode. */
#define STN_OP_NOP 0    /* nothing */
#define STN_OP_WRITE 1  /* buffer to segment */
#define STN_OP_READ 2   /* segment to buffer */
#define STN_OP_COMMIT 3 /* this participant's segment is whole */
#define STN_OP_ABORT 4  /* abort the checkpoint */

/**
 * A request: 64 bytes, little-endian.
 *
 * Fields that an operation does not use are zero. STN_OP_NOP uses user_data only; STN_OP_COMMIT and
 * STN_OP_ABORT also use checkpoint; STN_OP_WRITE and STN_OP_READ use all fields that are not reserved.
 *
 * A write or a read starts at a multiple of the pool's chunk_bytes in the segment and ends at one, or
 * at the segment's end. In the buffer it starts at a multiple of 4096; where its length is not one,
 * the buffer has room up to the next, and a write fills that with zeroes. Each chunk is written once; a
 * write that failed may be repeated, and until then all of its chunks are missing.
 */
struct stn_sqe {
    uint8_t opcode;               /* one of STN_OP_ */
    uint8_t flags;                /* 0 */
    uint16_t reserved0;           /* 0 */
    uint32_t buffer;              /* key of a buffer of this session */
    uint64_t checkpoint;          /* handle of stn_begin() or stn_open() of this session */
    uint64_t buffer_offset_bytes; /* where in the buffer */
    uint64_t len_bytes;           /* how much */
    uint64_t segment_offset_bytes; /* where in the segment */
    uint64_t user_data;           /* comes back in the completion */
    uint64_t reserved1[2];        /* 0 */
};

/**
 * A completion: 32 bytes, little-endian.
 *
 * Errors:
 *   -EINVAL            the entry is malformed: unknown opcode or flag, a field that must be zero
 *                      and is not, a length of zero, an offset that is not aligned
 *   -EBADF             checkpoint or buffer is not one of this session's, or not of the right kind, or
 *                      the checkpoint is committed or aborted, or that is in progress
 *   -ERANGE            the range leaves the buffer or the segment, or overflows
 *   -EEXIST            a chunk of the range was written already
 *   -EIO               a drive failed the command; detail has its NVMe status, if there is one. In its
 *                      place another errno may give the operating system's reason.
 *                      After a commit it is not known whether the checkpoint is durable, until the
 *                      pool is opened again
 *   -ECANCELED         another participant aborted the checkpoint
 *   -ENOTRECOVERABLE   a thread of the library failed at a chunk's checksum; the entry may be repeated
 *   -STN_E_DAMAGED     what was read is not what was written; aux is the segment offset
 *   -STN_E_POISONED    a commit after the flush or root write of another one failed, or after the
 *                      thread that commits failed: the pool refuses writes until it is opened again.
 *                      Of the commit itself it is not known whether it is durable, until then
 *   -STN_E_REMOVED     the drive is gone, or the thread that serves it has failed. After a commit as
 *                      for -EIO
 *   -STN_E_SHORT       the drive, or the file that stands for it, is shorter than it was
 *   -STN_E_INCOMPLETE  a commit before all of the segment was written; aux counts the missing
 *                      chunks, which may still be written
 */
struct stn_cqe {
    uint64_t user_data; /* the entry's */
    int64_t result;     /* bytes moved, 0 for others; or a negative error */
    uint32_t flags;     /* 0 */
    uint32_t detail;    /* NVMe status type << 8 | status code; 0 when there is none */
    uint64_t aux;       /* a commit's generation; of a failure, the segment offset */
};

/* stn_pool_opts.flags */
#define STN_POOL_READ_ONLY 1u /* list and restore only; any number of processes may, also beside one
                                 that writes. Drives may be missing: what needs them cannot be
                                 restored. The pool shows what was there when it was opened: to see
                                 later checkpoints, open it again */
#define STN_POOL_DEGRADED 2u  /* allow writes while drives are missing. A drive that was left out
                                 is refused until it is re-admitted */
#define STN_POOL_FALL_BACK 4u /* open the generation before the newest one where that cannot be read.
                                 Opened for writing, what was committed later is lost */
#define STN_POOL_TAKE_OVER 8u /* take the drives from an owner on another host, or in another
                                 container, that has ended: what it still writes fails. An owner
                                 whose end is certain needs no flag */

/* stn_pool_opts.huge_pages: pages of session memory. SPDK drives always need huge ones. */
#define STN_HUGE_REQUIRED 0  /* huge pages or an error */
#define STN_HUGE_PREFERRED 1 /* huge pages, or ordinary ones and a warning in the log */
#define STN_HUGE_OFF 2       /* ordinary pages */

/** Options of stn_pool_open(). */
struct stn_pool_opts {
    uint32_t size;             /* sizeof(struct stn_pool_opts) */
    uint32_t flags;            /* STN_POOL_ */
    const char *const *drives; /* addresses of all drives of the pool, in any order */
    const uint32_t *cores;     /* cores to pin reactor threads to; NULL: chosen */
    uint32_t drive_count;
    uint32_t core_count;
    uint32_t huge_pages;       /* STN_HUGE_ */
    uint32_t reactors;         /* reactor threads; 0: one for each drive, leaving one core free */
    uint32_t queue_depth;      /* commands in flight on each drive, up to 4096; 0: 16, or 64
                                where the kernel drives it */
    uint32_t checksum_threads; /* up to 64; 0: a quarter of the cores */
};

/* stn_format_opts.flags */
#define STN_FORMAT_FORCE 1u  /* destroy what is there; a drive in use is still refused */
#define STN_FORMAT_MIRROR 2u /* each chunk on two drives, so that any one drive may be lost */

/** Options of stn_format(). */
struct stn_format_opts {
    uint32_t size;  /* sizeof(struct stn_format_opts) */
    uint32_t flags; /* STN_FORMAT_ */
    const char *const *drives;
    uint32_t drive_count;
    uint32_t reserved;     /* 0 */
    uint64_t chunk_bytes;  /* unit of striping, a power of two; 0: 1 MiB, or what the drives take,
                              and more in a pool above 60 TB */
    uint64_t create_bytes; /* size of files that do not exist; 0: they must exist */
    uint64_t metadata_bytes; /* of each drive, for what describes checkpoints: 1 MiB to half of the
                                smallest drive; how many checkpoints fit follows from it; 0: by
                                the size of the drives */
};

/** Facts about a pool. */
struct stn_pool_info {
    uint32_t size; /* sizeof(struct stn_pool_info) */
    uint32_t drives;
    uint8_t pool[16];     /* its UUID */
    uint64_t generation;  /* number of its committed state */
    uint64_t epoch;       /* grows with every opening for writing */
    uint64_t created_unix_ns;
    uint64_t chunk_bytes; /* unit of striping */
    uint64_t max_checkpoints;
    uint64_t capacity_bytes; /* checkpoint data that it can hold */
    uint64_t free_bytes;     /* UINT64_MAX when opened for reading only */
    uint32_t copies;         /* of each chunk: 1, or 2 in a mirror */
    uint32_t reserved;
};

/* stn_drive_info.state */
#define STN_DRIVE_MEMBER 0     /* it holds all that it should */
#define STN_DRIVE_ABSENT 1     /* missing, or the pool was written without it */
#define STN_DRIVE_REBUILDING 2 /* added, and not filled yet */


/** Facts about a drive of a pool. The strings are the pool's and last as long as it. */
struct stn_drive_info {
    uint32_t size;          /* sizeof(struct stn_drive_info) */
    int32_t volatile_cache; /* 1: writes may be lost before a flush; 0: not; -1: unknown */
    uint8_t uuid[16];
    uint64_t capacity_bytes;
    const char *serial;
    const char *address;
    const char *model;
    const char *back_end; /* what drives it: "kernel io_uring", "spdk" ... */
    uint32_t state;       /* STN_DRIVE_ */
    uint32_t reserved;
};

/* Bytes of a NAME@STEP with its NUL, at most. */
#define STN_NAME_BYTES 160

/* stn_checkpoint_info.health: which of its data the present drives have */
#define STN_HEALTH_WHOLE 0    /* all of it */
#define STN_HEALTH_ONE_COPY 1 /* all of it, some chunks in fewer copies than the pool keeps */
#define STN_HEALTH_LOST 2     /* some chunks lie on missing drives only */
#define STN_HEALTH_UNKNOWN 3  /* its metadata cannot be read, or some chunks lie only on drives that
                                 are being rebuilt: a restore shows whether they are right */

/** Facts about a committed checkpoint. */
struct stn_checkpoint_info {
    uint32_t size; /* sizeof(struct stn_checkpoint_info) */
    uint32_t participants;
    uint8_t id[16];
    uint64_t bytes; /* of all segments */
    uint64_t step;
    uint64_t committed_unix_ns;
    uint64_t generation; /* that made it visible */
    uint32_t damaged;    /* 1: its metadata cannot be read on any drive */
    uint32_t health;     /* STN_HEALTH_ */
    char name[STN_NAME_BYTES]; /* NAME@STEP */
};

/** Facts about a segment. */
struct stn_segment_info {
    uint32_t size; /* sizeof(struct stn_segment_info) */
    uint32_t participant;
    uint64_t len_bytes;
    uint64_t chunk_bytes; /* reads start and end at its multiples, or at the segment's end */
    uint64_t shards;
};

/** Facts about a shard. The pointers last as long as the stn_checkpoint they came from. */
struct stn_shard_info {
    uint32_t size; /* sizeof(struct stn_shard_info) */
    uint32_t dimensions;
    uint64_t offset_bytes; /* in the segment */
    uint64_t len_bytes;
    const char *name;
    const char *dtype;     /* "" when it is not a tensor */
    const uint64_t *shape; /* dimensions numbers */
};

/** A shard, declared: a named range of a segment. */
struct stn_shard {
    const char *name;      /* unique in the segment, 1 to 1024 bytes */
    uint64_t offset_bytes; /* in the segment; shards ascend and do not overlap */
    uint64_t len_bytes;
    const char *dtype;     /* up to 16 ASCII characters; NULL: none */
    const uint64_t *shape; /* may be NULL when dimensions is 0 */
    uint32_t dimensions;   /* up to 16 */
    uint32_t reserved;     /* 0 */
};

/** Options of stn_session_create(). */
struct stn_session_opts {
    uint32_t size;         /* sizeof(struct stn_session_opts) */
    uint32_t flags;        /* STN_SESSION_ */
    uint64_t memory_bytes; /* for stn_buf_alloc(), taken now; 0: 64 MiB */
    uint32_t entries;      /* a power of two up to 4096; 0: 256. Twice as many may be outstanding */
    uint32_t reserved;     /* 0 */
};

/* stn_session_opts.flags */
#define STN_SESSION_NO_MEMORY 1u /* no memory for stn_buf_alloc(); memory_bytes is 0 */

/** Options of stn_begin(). */
struct stn_begin_opts {
    uint32_t size;               /* sizeof(struct stn_begin_opts) */
    uint32_t flags;              /* 0 */
    const char *name;            /* NAME@STEP */
    uint32_t participants;       /* writers of the checkpoint; the same for each; 0: 1 */
    uint32_t participant;        /* which of them this is, from 0 */
    uint64_t len_bytes;          /* of this participant's segment */
    const struct stn_shard *shards;
    uint32_t shard_count;
    uint32_t shard_size;         /* sizeof(struct stn_shard); 0 when there are none */
};

/** A shard to be saved: a named range of the segment, and its bytes. */
struct stn_save_shard {
    const char *name;      /* unique in the segment, 1 to 1024 bytes */
    const void *bytes;     /* may be NULL when len_bytes is 0 */
    uint64_t len_bytes;
    const char *dtype;     /* up to 16 ASCII characters; NULL: none */
    const uint64_t *shape; /* may be NULL when dimensions is 0 */
    uint32_t dimensions;   /* up to 16 */
    uint32_t reserved;     /* 0 */
};

/** Options of stn_save(). */
struct stn_save_opts {
    uint32_t size;         /* sizeof(struct stn_save_opts) */
    uint32_t flags;        /* 0 */
    const char *name;      /* NAME@STEP */
    uint32_t participants; /* writers of the checkpoint; the same for each; 0: 1 */
    uint32_t participant;  /* which of them this is, from 0 */
    const struct stn_save_shard *shards; /* one after the other they are the segment */
    uint32_t shard_count;
    uint32_t shard_size;   /* sizeof(struct stn_save_shard); 0 when there are none */
    uint64_t timeout_ns;   /* 0: none */
};

/** Options of stn_restore(). */
struct stn_restore_opts {
    uint32_t size;         /* sizeof(struct stn_restore_opts) */
    uint32_t flags;        /* 0 */
    const char *name;      /* NAME@STEP */
    const char *shard;     /* NULL: the whole segment */
    uint32_t participant;  /* whose segment */
    uint32_t reserved;     /* 0 */
    uint64_t offset_bytes; /* where to start in the shard or segment */
    uint64_t len_bytes;    /* 0: up to its end */
};

/* Levels of stn_set_log(). */
#define STN_LOG_OFF 0
#define STN_LOG_ERROR 1
#define STN_LOG_WARN 2
#define STN_LOG_INFO 3
#define STN_LOG_DEBUG 4
#define STN_LOG_TRACE 5

/** Receives a log record; see stn_set_log(). */
typedef void stn_log_fn(void *context, uint32_t level, const char *target, const char *message);

/**
 * stn_version - the version of the library
 *
 * Threads: any.
 * Returns: major << 16 | minor << 8 | patch, to be compared with STN_VERSION of the header.
 */
uint32_t stn_version(void);

/**
 * stn_version_string - the version of the library as a string
 *
 * Threads: any.
 * Ownership: the string is the library's and lasts for ever.
 * Returns: for example "0.1.0".
 */
const char *stn_version_string(void);

/**
 * stn_has_spdk - whether the library was built with SPDK
 *
 * A library built without refuses addresses of SPDK drives with -STN_E_ENVIRONMENT.
 *
 * Threads: any.
 * Returns: 1 or 0.
 */
int stn_has_spdk(void);

/**
 * stn_strerror - the text of an error number
 *
 * Threads: any.
 * Ownership: the string is the library's and lasts for ever.
 * Returns: the text of the errno or STN_E_ number, with or without its sign; never NULL.
 */
const char *stn_strerror(int error);

/**
 * stn_last_error - what went wrong, to what, and what to do
 *
 * Copies the details of the last call that failed in the calling thread, as much as there is room
 * for, and a NUL. A call that succeeds does not change them.
 *
 * Threads: any; each has its own.
 * Ownership: buffer is the caller's; it may be NULL when size is 0.
 * Returns: the length of the whole text without its NUL; 0 when no call failed yet.
 */
size_t stn_last_error(char *buffer, size_t size);

/**
 * stn_set_log - set the function that receives log records
 *
 * Records of this level and those more severe are given to callback, one at a time or from several
 * threads at once. The strings last until it returns. The callback must not throw or call into the
 * library, and should be quick: some of the library's threads wait for it. Without a callback, or
 * with STN_LOG_OFF, records are dropped. When a call returns, the callback set before it is not
 * running and will not run again.
 *
 * Threads: any.
 * Ownership: callback and context are kept until the next call.
 * Returns: 0.
 * Errors:
 *   -EINVAL   level is not one of STN_LOG_
 *   -EDEADLK  called from inside the callback
 *   -EEXIST   the library is part of a Rust program that receives the records already
 */
int stn_set_log(stn_log_fn *callback, void *context, uint32_t level);

/**
 * stn_format - make a pool of drives
 *
 * Everything on the drives is lost. Drives that are in use, and drives that hold something unless
 * STN_FORMAT_FORCE is set, are refused.
 *
 * Threads: any. Blocks.
 * Ownership: opts, and what it points to, is the caller's.
 * Returns: 0.
 * Errors:
 *   -EFAULT              opts, drives or a drive is NULL
 *   -EINVAL              size, flags, reserved, drive_count, chunk_bytes, metadata_bytes or an
 *                        address is invalid, or the drives are too small for a pool
 *   -E2BIG               opts has something set that this library does not know
 *   -ENODEV              a drive does not exist
 *   -EBUSY               a process has the drive's pool open
 *   -EIO                 a drive failed a command; another errno may say how
 *   -STN_E_REFUSED       a drive is in use, or holds something and STN_FORMAT_FORCE is not set
 *   -STN_E_DRIVES        a drive is named twice
 *   -STN_E_ENVIRONMENT   the machine is not set up for it; stn_last_error() says what to do
 */
int stn_format(const struct stn_format_opts *opts);

/**
 * stn_pool_open - open a pool
 *
 * Opening for writing repairs what a crash left behind and takes the pool for this process. Threads
 * are started: reactors, which poll while there is work, checksum helpers, and one that commits.
 *
 * Threads: any. Blocks.
 * Ownership: opts, and what it points to, is the caller's; *pool is closed by stn_pool_close().
 * Returns: 0.
 * Errors:
 *   -EFAULT              opts, drives, a drive, cores or pool is NULL
 *   -EINVAL              size, flags, drive_count, huge_pages, queue_depth, cores or an address
 *                        is invalid
 *   -E2BIG               opts has something set that this library does not know
 *   -ENODEV              a drive does not exist
 *   -EBUSY               another process, or this one, has the pool open
 *   -EMFILE              the process has 64 pools open
 *   -EIO                 a drive failed a command; another errno may say how
 *   -STN_E_DAMAGED       the pool's metadata is damaged on all of its drives
 *   -STN_E_SHORT         a drive is shorter than when it was formatted
 *   -STN_E_NOT_FORMATTED a drive has no pool of ours
 *   -STN_E_NEWER_FORMAT  the pool needs a newer library
 *   -STN_E_OLDER_FORMAT  the pool needs an older library: restore its checkpoints with that, then
 *                        format its drives with this one
 *   -STN_E_DRIVES        drives are missing, of another pool, named twice, or out of date: the pool
 *                        was written without them
 *   -STN_E_ENVIRONMENT   the machine is not set up for it; stn_last_error() says what to do
 */
int stn_pool_open(const struct stn_pool_opts *opts, stn_pool **pool);

/**
 * stn_pool_close - close a pool
 *
 * Threads: any. Blocks until the pool's threads have ended.
 * Ownership: the handle and the strings of stn_drive_info() are invalid afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      pool is NULL
 *   -EBADF       pool is not an open pool
 *   -EOWNERDEAD  pool belongs to the process that this one was forked from
 *   -EBUSY       it has sessions, or another thread is inside a call on it; it stays open
 */
int stn_pool_close(stn_pool *pool);

/**
 * stn_pool_info - facts about the pool
 *
 * Threads: any.
 * Returns: 0.
 * Errors:
 *   -EFAULT      pool or info is NULL
 *   -EINVAL      info's size is invalid
 *   -EBADF       pool is not an open pool
 *   -EOWNERDEAD  pool belongs to the process that this one was forked from
 *   -EBUSY       another thread is closing it
 */
int stn_pool_info(stn_pool *pool, struct stn_pool_info *info);

/**
 * stn_drive_info - facts about one drive of the pool
 *
 * Threads: any.
 * Ownership: the strings in info are the pool's and last as long as it.
 * Returns: 0.
 * Errors:
 *   -EFAULT      pool or info is NULL
 *   -EINVAL      info's size is invalid
 *   -ERANGE      index is not below the number of drives
 *   -EBADF       pool is not an open pool
 *   -EOWNERDEAD  pool belongs to the process that this one was forked from
 *   -EBUSY       another thread is closing it
 */
int stn_drive_info(stn_pool *pool, uint32_t index, struct stn_drive_info *info);

/**
 * stn_list_create - the committed checkpoints of the pool, as they are now
 *
 * Threads: any.
 * Ownership: *list is the caller's until stn_list_free(); it may outlive the pool.
 * Returns: 0.
 * Errors:
 *   -EFAULT      pool or list is NULL
 *   -EBADF       pool is not an open pool
 *   -EOWNERDEAD  pool belongs to the process that this one was forked from
 *   -EBUSY       another thread is closing the pool
 *   -EMFILE      the process has 1024 lists
 */
int stn_list_create(stn_pool *pool, stn_list **list);

/**
 * stn_list_count - how many checkpoints a list has
 *
 * Threads: any.
 * Returns: the number.
 * Errors:
 *   -EFAULT      list is NULL
 *   -EBADF       list is not a list
 *   -EOWNERDEAD  list belongs to the process that this one was forked from
 */
int64_t stn_list_count(const stn_list *list);

/**
 * stn_list_get - one checkpoint of a list
 *
 * They are ordered by name, then by step.
 *
 * Threads: any.
 * Returns: 0.
 * Errors:
 *   -EFAULT      list or info is NULL
 *   -EINVAL      info's size is invalid
 *   -ERANGE      index is not below the number of checkpoints
 *   -EBADF       list is not a list
 *   -EOWNERDEAD  list belongs to the process that this one was forked from
 */
int stn_list_get(const stn_list *list, uint64_t index, struct stn_checkpoint_info *info);

/**
 * stn_list_free - free a list
 *
 * Threads: any.
 * Ownership: the handle is invalid afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      list is NULL
 *   -EBADF       list is not a list
 *   -EOWNERDEAD  list belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 */
int stn_list_free(stn_list *list);

/**
 * stn_latest - the checkpoint of a name with the largest step
 *
 * name is the part before the @.
 *
 * Threads: any.
 * Returns: 0.
 * Errors:
 *   -EFAULT      pool, name or info is NULL
 *   -EINVAL      name is not a name, or info's size is invalid
 *   -ENOENT      there is no checkpoint of that name
 *   -EBADF       pool is not an open pool
 *   -EOWNERDEAD  pool belongs to the process that this one was forked from
 *   -EBUSY       another thread is closing the pool
 */
int stn_latest(stn_pool *pool, const char *name, struct stn_checkpoint_info *info);

/**
 * stn_remove - remove a checkpoint
 *
 * When this returns 0 it is durably gone.
 *
 * Threads: any. Blocks.
 * Returns: 0.
 * Errors:
 *   -EFAULT           pool or name is NULL
 *   -EINVAL           name is not a NAME@STEP
 *   -ENOENT           there is no such checkpoint
 *   -EROFS            the pool was opened for reading only
 *   -EBADF            pool is not an open pool
 *   -EOWNERDEAD       pool belongs to the process that this one was forked from
 *   -EBUSY            a session has the checkpoint open, or another thread is closing the pool
 *   -EIO              a drive failed a command; another errno may say how
 *   -STN_E_POISONED   the pool refuses writes after a failed flush or root write
 */
int stn_remove(stn_pool *pool, const char *name);

/**
 * stn_checkpoint_show - what a checkpoint consists of
 *
 * Threads: any. Blocks.
 * Ownership: *checkpoint is the caller's until stn_checkpoint_free(); it may outlive the pool.
 * Returns: 0.
 * Errors:
 *   -EFAULT          pool, name or checkpoint is NULL
 *   -EINVAL          name is not a NAME@STEP
 *   -ENOENT          there is no such checkpoint
 *   -EBADF           pool is not an open pool
 *   -EOWNERDEAD      pool belongs to the process that this one was forked from
 *   -EBUSY           another thread is closing the pool
 *   -EMFILE          the process has 1024 of them
 *   -STN_E_DAMAGED   its metadata cannot be read on any drive
 */
int stn_checkpoint_show(stn_pool *pool, const char *name, stn_checkpoint **checkpoint);

/**
 * stn_checkpoint_get - facts about a checkpoint
 *
 * Threads: any.
 * Returns: 0.
 * Errors:
 *   -EFAULT      checkpoint or info is NULL
 *   -EINVAL      info's size is invalid
 *   -EBADF       checkpoint is not a description
 *   -EOWNERDEAD  checkpoint belongs to the process that this one was forked from
 */
int stn_checkpoint_get(const stn_checkpoint *checkpoint, struct stn_checkpoint_info *info);

/**
 * stn_checkpoint_segment - facts about one participant's segment
 *
 * Threads: any.
 * Returns: 0.
 * Errors:
 *   -EFAULT      checkpoint or info is NULL
 *   -EINVAL      info's size is invalid
 *   -ERANGE      participant is not below the number of participants
 *   -EBADF       checkpoint is not a description
 *   -EOWNERDEAD  checkpoint belongs to the process that this one was forked from
 */
int stn_checkpoint_segment(const stn_checkpoint *checkpoint, uint32_t participant,
                           struct stn_segment_info *info);

/**
 * stn_checkpoint_shard - facts about one shard, by its place in the segment
 *
 * Threads: any.
 * Ownership: the pointers in info are the checkpoint's and last as long as it.
 * Returns: 0.
 * Errors:
 *   -EFAULT      checkpoint or info is NULL
 *   -EINVAL      info's size is invalid
 *   -ERANGE      participant or index is not below its number
 *   -EBADF       checkpoint is not a description
 *   -EOWNERDEAD  checkpoint belongs to the process that this one was forked from
 */
int stn_checkpoint_shard(const stn_checkpoint *checkpoint, uint32_t participant, uint64_t index,
                         struct stn_shard_info *info);

/**
 * stn_checkpoint_find - facts about one shard, by its name
 *
 * Threads: any.
 * Ownership: the pointers in info are the checkpoint's and last as long as it.
 * Returns: 0.
 * Errors:
 *   -EFAULT      checkpoint, name or info is NULL
 *   -EINVAL      name is not UTF-8, or info's size is invalid
 *   -ERANGE      participant is not below the number of participants
 *   -ENOENT      the segment has no shard of that name
 *   -EBADF       checkpoint is not a description
 *   -EOWNERDEAD  checkpoint belongs to the process that this one was forked from
 */
int stn_checkpoint_find(const stn_checkpoint *checkpoint, uint32_t participant, const char *name,
                        struct stn_shard_info *info);

/**
 * stn_checkpoint_free - free a description
 *
 * Threads: any.
 * Ownership: the handle and the pointers of its shards are invalid afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      checkpoint is NULL
 *   -EBADF       checkpoint is not a description
 *   -EOWNERDEAD  checkpoint belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 */
int stn_checkpoint_free(stn_checkpoint *checkpoint);

/**
 * stn_save - save a segment from memory
 *
 * Writes one participant's shards, one after the other without gaps, to all drives at once, and waits
 * until the checkpoint is durable and visible. A checkpoint of several participants becomes visible
 * when every one of them has saved its segment or committed it through a session.
 *
 * Whole chunks go straight to the drives where they lie one after the other in memory, start at a
 * multiple of 4096 there, and every drive can read that memory: SPDK drives read that of
 * stn_buf_alloc() and stn_mem_register(), and huge pages. The rest is copied once. At most 64 ranges
 * of memory go straight: the longest.
 *
 * On timeout the checkpoint is aborted, for every participant, unless its commit succeeded meanwhile:
 * then the call succeeds. The call returns only when no drive reads the memory any
 * more, which takes longer where a drive does not answer.
 *
 * Threads: any. Blocks.
 * Ownership: opts, and what it points to, is the caller's, and does not change during the call.
 * Returns: the bytes that were saved: the length of the segment.
 * Errors:
 *   -EFAULT           pool, opts, name, shards, a shard's name, bytes or shape is NULL
 *   -EINVAL           size, flags, reserved, name, participants, participant, shard_size or a shard
 *                     is invalid, or does not fit what other participants declared
 *   -E2BIG            opts or a shard has something set that this library does not know
 *   -EEXIST           the checkpoint is committed already, or this participant has joined it
 *   -ENOSPC           the pool has no room for it
 *   -EROFS            the pool was opened for reading only
 *   -ENOMEM           memory for the transfer cannot be allocated
 *   -EMFILE           the process has too many descriptors, or the pool as many checkpoints as it can
 *                     hold
 *   -EBADF            pool is not an open pool
 *   -EOWNERDEAD       pool belongs to the process that this one was forked from
 *   -EBUSY            another thread is closing the pool
 *   -ETIME            the timeout expired; nothing was saved
 *   -ECANCELED        another participant aborted the checkpoint
 *   -EIO              a drive failed a command; another errno may say how. If it was one of the commit,
 *                     it is not known whether the checkpoint is durable, until the pool is opened again
 *   -STN_E_POISONED   the pool refuses writes after a failed flush or root write
 *   -STN_E_REMOVED    a drive is gone
 */
int64_t stn_save(stn_pool *pool, const struct stn_save_opts *opts);

/**
 * stn_restore - read a segment, a shard, or a range of either into memory
 *
 * Reads from all drives at once and verifies every chunk. Where destination has the same place in a
 * page as the bytes have in their chunk, whole chunks go straight from the drives to it; the rest
 * goes through the library's memory. On an error the contents of destination are undefined.
 *
 * Threads: any. Blocks.
 * Ownership: destination is the caller's, and nothing else touches it during the call.
 * Returns: the bytes that were read: all that were asked for.
 * Errors:
 *   -EFAULT           pool, opts, name or destination is NULL
 *   -EINVAL           size, flags, reserved or name is invalid, or participant is too large
 *   -E2BIG            opts has something set that this library does not know
 *   -ENOENT           there is no such checkpoint or shard
 *   -ERANGE           the range leaves the shard or segment
 *   -ENOBUFS          destination is too small for it
 *   -ENOMEM           memory for the transfer cannot be allocated
 *   -EMFILE           the process has too many descriptors
 *   -EBADF            pool is not an open pool
 *   -EOWNERDEAD       pool belongs to the process that this one was forked from
 *   -EBUSY            another thread is closing the pool
 *   -EIO              a drive failed a command; another errno may say how
 *   -ESTALE           another process, which owns the pool, removed it meanwhile: nothing of what
 *                     was read counts
 *   -STN_E_DAMAGED    what was read is not what was written; stn_last_error() names it
 *   -STN_E_REMOVED    a drive is gone
 *   -STN_E_SHORT      a drive is shorter than it was
 */
int64_t stn_restore(stn_pool *pool, const struct stn_restore_opts *opts, void *destination,
                    uint64_t destination_bytes);

/**
 * stn_session_create - make a session
 *
 * Threads: any. Blocks.
 * Ownership: opts is the caller's and may be NULL for the defaults; *session is ended by
 *   stn_session_destroy() and keeps its pool from being closed.
 * Returns: 0.
 * Errors:
 *   -EFAULT             pool or session is NULL
 *   -EINVAL             size, flags, reserved, entries or memory_bytes is invalid
 *   -E2BIG              opts has something set that this library does not know
 *   -ENOMEM             memory_bytes cannot be allocated, in huge pages where these are required
 *   -EMFILE             the process has 1024 sessions, or too many descriptors
 *   -EBADF              pool is not an open pool
 *   -EOWNERDEAD         pool belongs to the process that this one was forked from
 *   -EBUSY              another thread is closing the pool
 */
int stn_session_create(stn_pool *pool, const struct stn_session_opts *opts, stn_session **session);

/**
 * stn_session_destroy - end a session
 *
 * Waits for entries in flight, aborts checkpoints that were begun and not committed, frees the
 * session's buffers and unregisters memory. Completions that were not taken are lost.
 *
 * Threads: one at a time. Blocks.
 * Ownership: the handle, its buffers, its keys and its descriptor are invalid afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      session is NULL
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it; it stays as it is
 */
int stn_session_destroy(stn_session *session);

/**
 * stn_session_eventfd - a descriptor for poll, epoll and the like
 *
 * It is readable as long as there are completions to take. It may be readable for a moment when
 * there are none, until stn_peek() has returned 0. Do not read, write or close it.
 *
 * Threads: one at a time.
 * Ownership: the descriptor is the session's and lasts as long as it.
 * Returns: the descriptor, the same each time.
 * Errors:
 *   -EFAULT      session is NULL
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 *   -EMFILE      the process has too many descriptors
 */
int stn_session_eventfd(stn_session *session);

/**
 * stn_submit - put entries on the ring of a session
 *
 * Copies count entries, in order, or as many as there is room for. Each accepted entry gets one
 * completion, which reports what is wrong with the entry. No system call is made unless
 * the session's reactor sleeps.
 *
 * Threads: one at a time.
 * Ownership: entries is the caller's; the memory that they name is not to be touched until their
 *   completions were taken.
 * Returns: how many entries, from the first, were accepted. Fewer than count, also 0: take
 *   completions, then submit the rest.
 * Errors:
 *   -EFAULT      session is NULL, or entries is and count is not 0
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it; no entry was accepted
 */
int stn_submit(stn_session *session, const struct stn_sqe *entries, uint32_t count);

/**
 * stn_peek - take completions that are there
 *
 * Never waits.
 *
 * Threads: one at a time.
 * Ownership: completions is the caller's, with room for count.
 * Returns: how many were taken.
 * Errors:
 *   -EFAULT      session is NULL, or completions is and count is not 0
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 */
int stn_peek(stn_session *session, struct stn_cqe *completions, uint32_t count);

/**
 * stn_wait - take completions, waiting for some
 *
 * Takes at most count completions. Waits until min were taken or timeout_ns nanoseconds have passed;
 * a negative timeout_ns waits for ever. Spins for a moment, then sleeps. Signals do not end it.
 *
 * Threads: one at a time.
 * Ownership: completions is the caller's, with room for count.
 * Returns: how many were taken; on timeout, fewer than min.
 * Errors:
 *   -EFAULT      session is NULL, or completions is and count is not 0
 *   -EINVAL      min is larger than count
 *   -ENODATA     fewer than min entries are outstanding, so waiting would never end
 *   -ETIME       the timeout expired before a completion came
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 */
int stn_wait(stn_session *session, struct stn_cqe *completions, uint32_t min, uint32_t count,
             int64_t timeout_ns);

/**
 * stn_buf_alloc - a buffer in the session's memory
 *
 * Aligned to 4096 bytes and rounded up to a multiple of them. Its content is undefined.
 *
 * Threads: one at a time.
 * Ownership: the buffer is the session's; it lasts until stn_buf_free() or the session's end.
 * Returns: 0; *address is its first byte, *key what entries name it by.
 * Errors:
 *   -EFAULT      session, address or key is NULL
 *   -EINVAL      len_bytes is 0, or the session was made with STN_SESSION_NO_MEMORY
 *   -ENOMEM      the session's memory has no free range of that length
 *   -EMFILE      the session has 1024 buffers
 *   -EBADF       session is not a session
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       another thread is inside a call on it
 */
int stn_buf_alloc(stn_session *session, uint64_t len_bytes, void **address, uint32_t *key);

/**
 * stn_buf_free - free a buffer
 *
 * Threads: one at a time.
 * Ownership: the buffer's memory is not to be touched afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      session is NULL
 *   -EBADF       session is not a session, or key is not one of its stn_buf_alloc()
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       an entry whose completion was not taken names the buffer, or another thread is
 *                inside a call on the session
 */
int stn_buf_free(stn_session *session, uint32_t key);

/**
 * stn_mem_register - use the caller's memory as a buffer
 *
 * Drives then read and write it without a copy. It starts and ends at multiples of 4096; on SPDK
 * drives it consists of huge pages and starts and ends at multiples of 2 MiB. Several sessions may
 * register the same memory; on SPDK drives not two ranges that overlap and differ.
 *
 * Threads: one at a time. Blocks.
 * Ownership: the memory is the caller's and stays mapped until stn_mem_unregister() or
 *   stn_session_destroy() has returned 0.
 * Returns: 0; *key is what entries name it by.
 * Errors:
 *   -EFAULT              session, address or key is NULL, or a part of the memory is not mapped for
 *                        reading, or lies beyond the end of the file that is mapped there
 *   -EINVAL              address or len_bytes is not a multiple of 4096, or len_bytes is 0, or an SPDK
 *                        drive knows a part of the memory by another range
 *   -EMFILE              the session has 1024 buffers
 *   -EBADF               session is not a session
 *   -EOWNERDEAD          session belongs to the process that this one was forked from
 *   -EBUSY               another thread is inside a call on it
 *   -STN_E_ENVIRONMENT   a drive cannot use such memory
 */
int stn_mem_register(stn_session *session, void *address, uint64_t len_bytes, uint32_t *key);

/**
 * stn_mem_unregister - end the use of the caller's memory
 *
 * Threads: one at a time. Blocks.
 * Ownership: the memory may be unmapped afterwards.
 * Returns: 0.
 * Errors:
 *   -EFAULT      session is NULL
 *   -EBADF       session is not a session, or key is not one of its stn_mem_register()
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -EBUSY       an entry whose completion was not taken names the memory, or another thread is
 *                inside a call on the session
 */
int stn_mem_unregister(stn_session *session, uint32_t key);

/**
 * stn_begin - begin a checkpoint, or join one that another participant began
 *
 * Reserves the space of this participant's segment on the drives, so that no later write can run out
 * of it.
 *
 * Threads: one at a time. Blocks.
 * Ownership: opts, and what it points to, is the caller's; *checkpoint is ended by stn_close() or
 *   the session's end.
 * Returns: 0; *checkpoint is what entries name the segment by.
 * Errors:
 *   -EFAULT           session, opts, checkpoint, a name, shards or a shape is NULL
 *   -EINVAL           size, flags, name, participants, participant, len_bytes, shard_size or a shard
 *                     is invalid, or does not fit what other participants declared
 *   -E2BIG            opts or a shard has something set that this library does not know
 *   -EEXIST           the checkpoint is committed already, or this participant has joined it
 *   -ENOSPC           the pool has no room for it
 *   -EROFS            the pool was opened for reading only
 *   -EMFILE           the session has 1024 segments open, or the pool as many checkpoints as it can
 *                     hold
 *   -EBADF            session is not a session
 *   -EOWNERDEAD       session belongs to the process that this one was forked from
 *   -EBUSY            another thread is inside a call on it
 *   -STN_E_POISONED   the pool refuses writes after a failed flush or root write
 */
int stn_begin(stn_session *session, const struct stn_begin_opts *opts, uint64_t *checkpoint);

/**
 * stn_open - open one participant's segment of a committed checkpoint for reading
 *
 * As long as it is open the checkpoint cannot be removed by this process.
 *
 * Threads: one at a time. Blocks.
 * Ownership: *checkpoint is ended by stn_close() or the session's end.
 * Returns: 0; *checkpoint is what entries name the segment by. info may be NULL.
 * Errors:
 *   -EFAULT           session, name or checkpoint is NULL
 *   -EINVAL           name is not a NAME@STEP, info's size is invalid, or participant is too
 *                     large
 *   -ENOENT           there is no such checkpoint
 *   -EMFILE           the session has 1024 segments open
 *   -EBADF            session is not a session
 *   -EOWNERDEAD       session belongs to the process that this one was forked from
 *   -EBUSY            another thread is inside a call on it
 *   -ESTALE           another process, which owns the pool, removed it since the pool was opened
 *   -STN_E_DAMAGED    its metadata cannot be read on any drive
 */
int stn_open(stn_session *session, const char *name, uint32_t participant, uint64_t *checkpoint,
             struct stn_segment_info *info);

/**
 * stn_close - close a segment of stn_begin() or stn_open()
 *
 * Waits for transfers of the segment that are in flight. A checkpoint that was begun and is not
 * committed is aborted, for every participant.
 *
 * Threads: one at a time. Blocks.
 * Returns: 0.
 * Errors:
 *   -EFAULT      session is NULL
 *   -EBADF       session is not a session, or checkpoint is not one of its handles
 *   -EOWNERDEAD  session belongs to the process that this one was forked from
 *   -ESTALE      the pool is open for reading, and the process that owns it removed the checkpoint
 *                meanwhile: nothing of what was read counts. The segment is closed
 *   -EBUSY       another thread is inside a call on it
 */
int stn_close(stn_session *session, uint64_t checkpoint);

#ifdef __cplusplus
}
#endif

#endif
