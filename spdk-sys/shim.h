/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface between Stanchion and SPDK: all that an NVMe back end needs, in plain integers and pointers.
 *
 * SPDK's own structures change size and layout between releases, so none of them is visible here. The shim is compiled
 * against the installed headers of any release from v20.07 to v26.09, and hides their differences.
 *
 * Return values: 0 or a positive count on success, a negative errno otherwise.
 *
 * Threads: the environment is initialised once per process. One controller's functions are called by one thread at a
 * time. A queue pair, with every request on it, belongs to one thread from alloc to free. Memory functions are safe
 * from any thread.
 *
 * Completions: a request is completed exactly once, by a call of its `complete`, and only from inside these functions:
 *   stn_spdk_qpair_process_completions            any request of that queue pair
 *   stn_spdk_qpair_free, _qpair_reconnect         requests of that queue pair, as aborted
 *   stn_spdk_controller_reset, _controller_detach requests of every queue pair of that controller, as aborted
 *   stn_spdk_controller_process_admin, _controller_reset, _controller_detach   abort requests
 * never from inside a submission. A submission that returns an error never calls `complete`.
 * A `complete` may submit requests on its queue pair, but frees no queue pair and detaches no controller.
 */
#ifndef STN_SPDK_SHIM_H
#define STN_SPDK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stn_spdk_controller;
struct stn_spdk_namespace;
struct stn_spdk_qpair;

/* ---- environment ---- */

struct stn_spdk_env_options {
    /* Process name for DPDK. NULL: "stanchion". */
    const char *name;
    /* DPDK core mask ("0x1") or list ("[3]"). NULL: the first core that the calling thread may run on. */
    const char *core_mask;
    /* "va" or "pa". NULL: SPDK chooses what the IOMMU supports. */
    const char *iova_mode;
    /* hugetlbfs mount point. NULL: the first that DPDK finds. */
    const char *huge_dir;
    /* Huge-page memory reserved at start, in MiB; it holds SPDK's own structures and stn_spdk_dma_zmalloc. 0: none
     * reserved, grows on demand. */
    uint32_t mem_size_mib;
    /* Do not use PCI: enough for NVMe over fabrics, and drives of this machine are then never probed. */
    bool no_pci;
    /* DPDK prints errors only, and SPDK does not announce itself. stn_spdk_set_log_level is for SPDK's own messages. */
    bool quiet;
};

/*
 * Initialises SPDK and DPDK, not shared with other processes (shm_id -1). DPDK pins the calling thread to the core
 * mask's first core: call from a thread made for this, or call stn_spdk_unaffinitize_thread after. Once per process:
 * -EALREADY when called again, even after stn_spdk_env_fini or after a failure. Huge pages are unlinked at once, so a
 * killed process leaves none behind.
 */
int stn_spdk_env_init(const struct stn_spdk_env_options *options);

/* Releases the environment. Every controller must be detached and every buffer freed before. */
void stn_spdk_env_fini(void);

/* Lets the calling thread run on every core again after DPDK pinned it. */
void stn_spdk_unaffinitize_thread(void);

/* Logs SPDK messages up to `level`: -1 none, 0 errors, 1 warnings, 2 notices, 3 info. None go to syslog. */
void stn_spdk_set_log_level(int level);

/* Receives a message as one line without its end, on the thread that SPDK runs on. `level` is as above. */
typedef void (*stn_spdk_log_fn)(int level, const char *message);

/*
 * Has `log` called with the messages of SPDK and DPDK, in place of printing them on stderr. Once, before
 * stn_spdk_env_init. -ENOMEM.
 */
int stn_spdk_set_log(stn_spdk_log_fn log);

/* "SPDK v20.07" and the like. Static storage. */
const char *stn_spdk_version_string(void);

/* ---- controllers ---- */

/* What identifies a transport address; see stn_spdk_address_parse. Text is NUL-terminated. */
struct stn_spdk_address {
    char transport[33];   /* "PCIE", "TCP", "RDMA" */
    char traddr[257];
    char trsvcid[33];
    char subnqn[224];
    bool is_pcie;
};

/*
 * Parses an SPDK transport ID ("trtype:PCIe traddr:0000:04:00.0"). Needs no environment. -EINVAL: not a transport ID,
 * or of a transport that this shim does not know.
 */
int stn_spdk_address_parse(const char *text, struct stn_spdk_address *address);

/* Zero in a number, or NULL, means SPDK's default. */
struct stn_spdk_connect_options {
    const char *hostnqn;
    /* 16 bytes that name this host to reservations; a PCIe drive that knows only 8 gets the first 8. NULL: SPDK's own,
     * and none for PCIe. */
    const uint8_t *host_identifier;
    uint32_t num_io_queues;
    uint32_t io_queue_size;          /* default depth of a queue pair */
    uint32_t io_queue_requests;      /* default number of request objects of a queue pair */
    /* Fabrics; needs stn_spdk_controller_process_admin polled several times within it. */
    uint32_t keep_alive_timeout_ms;
    uint32_t admin_timeout_ms;       /* for the commands of the connect itself */
    bool no_error_logging;           /* do not print each command that completes with an error status */
};

/*
 * Connects to and initialises the controller at a transport ID; blocks until done or timed out. On success
 * *controller is the caller's until stn_spdk_controller_detach.
 * -EPERM: no environment. -EINVAL: the address does not parse or hostnqn is too long. -ENODEV: no controller answered
 * (SPDK's log says why: not bound to vfio-pci, refused connection, unknown NQN). -ENOMEM. -EPROTONOSUPPORT: this SPDK
 * was built without the transport.
 */
int stn_spdk_controller_connect(const char *address, const struct stn_spdk_connect_options *options,
                                struct stn_spdk_controller **controller);

/*
 * Ends the connection and frees the controller, whatever this returns. Its queue pairs must be freed before: -EBUSY
 * while there is one, and then nothing was done. A negative errno other than that is SPDK's own report.
 */
int stn_spdk_controller_detach(struct stn_spdk_controller *controller);

/* Called for each controller found; the callee may use `controller` during the call and must not detach it. */
typedef void (*stn_spdk_visit_fn)(void *context, const char *address, struct stn_spdk_controller *controller);

/*
 * Attaches every PCIe controller that is bound to a userspace driver, calls `visit` for each and detaches it. Attaching
 * resets a controller, so controllers that this process has connected are left out, and no other process may be
 * using one. Returns how many were visited, or a negative errno.
 */
int stn_spdk_pcie_list(stn_spdk_visit_fn visit, void *context);

/* Text fields are NUL-terminated and padded with spaces as the controller reports them. */
struct stn_spdk_controller_facts {
    char serial[21];
    char model[41];
    char firmware[9];
    uint16_t pci_vendor;             /* Identify VID */
    uint32_t namespace_count;        /* highest namespace ID that may exist */
    uint64_t max_transfer_bytes;     /* largest command that SPDK will not split */
    uint8_t mdts;                    /* Identify MDTS: power of two of minimum pages, 0 means no limit */
    bool has_volatile_write_cache;
    uint16_t atomic_write_power_fail_blocks; /* AWUPF + 1 */
    bool has_reservations;           /* ONCS bit 5; whether a namespace has them, it says itself */
    bool has_long_host_identifier;   /* CTRATT bit 0: 16 bytes, and reports are in the extended form */
};

void stn_spdk_controller_facts(struct stn_spdk_controller *controller, struct stn_spdk_controller_facts *facts);

/*
 * The SMART / health log page (02h) of the controller, `length` bytes of it, 512 at most. Blocks until the controller
 * has answered. -ETIMEDOUT after 5 seconds; -EIO when it answers with an error; -EINVAL for a length that is not a
 * multiple of 4.
 */
int stn_spdk_controller_health(struct stn_spdk_controller *controller, void *log, size_t length);

/* First active namespace ID (previous == 0) or the next one after `previous`; 0 when there is none. */
uint32_t stn_spdk_controller_next_namespace(struct stn_spdk_controller *controller, uint32_t previous);

/*
 * The namespace, or NULL when `id` is not active. Borrowed from the controller and invalid after
 * stn_spdk_controller_reset: ask again.
 */
struct stn_spdk_namespace *stn_spdk_controller_namespace(struct stn_spdk_controller *controller, uint32_t id);

/* Sends keep-alives, completes admin commands, notices removal. Returns completions or a negative errno (-ENXIO:
 * failed). */
int stn_spdk_controller_process_admin(struct stn_spdk_controller *controller);

/* True once SPDK has given the controller up: then only a detach or a reset is possible. */
bool stn_spdk_controller_is_failed(struct stn_spdk_controller *controller);

/*
 * True once the kernel wants a PCIe drive back: it is being unplugged, or unbound from vfio-pci. It may still work, but
 * the kernel waits for this process: free its queue pairs and detach it, or the unplugging never ends.
 */
bool stn_spdk_controller_is_removed(struct stn_spdk_controller *controller);

/* True when a PCIe drive no longer answers: its registers read as all ones. It was pulled out, or its link is down. */
bool stn_spdk_controller_is_absent(struct stn_spdk_controller *controller);

/*
 * Gives the controller up, as if its connection were lost: later calls (freeing queue pairs, detaching) send it no
 * commands and so cannot wait for an answer that never comes. For fabrics; reset or shut down a PCIe controller
 * instead.
 */
void stn_spdk_controller_fail(struct stn_spdk_controller *controller);

/*
 * Resets the controller; blocks. No other thread may use it or its queue pairs meanwhile. Afterwards each queue pair
 * needs stn_spdk_qpair_reconnect and each namespace must be looked up again.
 * Before SPDK v22.05 commands are completed as aborted while a PCIe drive may still run them: neither their buffers
 * nor their blocks may be reused before the reset has returned.
 */
int stn_spdk_controller_reset(struct stn_spdk_controller *controller);

/*
 * Takes bus mastering from a PCIe controller that a reset could not stop: it reaches no memory then. True when its PCI
 * command register says so, or when the function is gone. The controller is of no use afterwards.
 */
bool stn_spdk_controller_stop_dma(struct stn_spdk_controller *controller);

/* `qpair` is NULL for an admin command. `context` is that of stn_spdk_controller_on_timeout. */
typedef void (*stn_spdk_timeout_fn)(void *context, struct stn_spdk_qpair *qpair, uint16_t command_id);

/*
 * Calls `timed_out` once for each command that is older than the limit; the command stays outstanding. Timeouts are
 * noticed only by the poll of the queue that holds the command, on that thread. Limit 0: no limit; timed_out NULL:
 * off. Before SPDK v21.07 one limit serves both: io_limit_us.
 */
void stn_spdk_controller_on_timeout(struct stn_spdk_controller *controller, uint64_t io_limit_us,
                                    uint64_t admin_limit_us, stn_spdk_timeout_fn timed_out, void *context);

/* ---- namespaces ---- */

struct stn_spdk_namespace_info {
    uint32_t id;
    uint32_t sector_bytes;           /* data bytes of a logical block */
    uint32_t metadata_bytes;         /* per logical block; 0 for a drive that Stanchion can use */
    uint64_t sector_count;
    uint32_t optimal_boundary_sectors; /* NOIOB: a command should not cross a multiple of it; 0: none */
    uint8_t nguid[16];               /* all zero: not reported */
    uint8_t eui64[8];                /* all zero: not reported */
    bool is_write_protected;
    /* RESCAP; bit 0: kept over a power loss, bit 3: Write Exclusive, Registrants Only. */
    uint8_t reservations;
    /* Command set identifier: 0 NVM, 1 key value, 2 zoned. SPDK v20.07 finds namespaces of set 0 only. */
    uint8_t command_set;
};

void stn_spdk_namespace_info(struct stn_spdk_namespace *namespace_, struct stn_spdk_namespace_info *facts);

/* ---- queue pairs and commands ---- */

/* Zero means the controller's default. */
struct stn_spdk_qpair_options {
    uint32_t io_queue_size;
    uint32_t io_queue_requests;      /* a submission gives -ENOMEM when as many are in use */
    bool delay_submit;               /* PCIe: ring the doorbell once per poll instead of once per command */
};

/* NULL: no free queue, no memory, or the controller has failed. The calling thread becomes the owner. */
struct stn_spdk_qpair *stn_spdk_qpair_alloc(struct stn_spdk_controller *controller,
                                            const struct stn_spdk_qpair_options *options);

/* Aborts outstanding requests and frees the queue pair, whatever this returns. NULL is allowed. */
int stn_spdk_qpair_free(struct stn_spdk_qpair *qpair);

/*
 * After a controller reset or a lost connection; outstanding requests complete as aborted. -EAGAIN: try again; -ENODEV:
 * removed; -ENXIO: the controller needs a reset.
 */
int stn_spdk_qpair_reconnect(struct stn_spdk_qpair *qpair);

/* False once the transport is known to be lost, or the controller failed. An idle queue pair must be polled to
 * notice. */
bool stn_spdk_qpair_is_connected(struct stn_spdk_qpair *qpair);

/*
 * Completes up to `max` requests (0: all that are ready), each by calling its `complete`. Returns how many, or a
 * negative errno when the queue pair is not usable (-ENXIO). Requests on a queue pair that was lost stay outstanding
 * until stn_spdk_qpair_reconnect or stn_spdk_qpair_free completes it.
 */
int stn_spdk_qpair_process_completions(struct stn_spdk_qpair *qpair, uint32_t max);

/*
 * NVMe status code type, status code and Do Not Retry. 0/0 is success. The request is idle again when this runs, so it
 * may be submitted again from here.
 */
typedef void (*stn_spdk_complete_fn)(void *context, uint16_t sct, uint16_t sc, bool dnr);

/*
 * One command. The caller owns the storage, zeroes it once, sets `complete` and `context`, and keeps it where it is
 * from a successful submission until `complete` has been called.
 *
 * `state` makes completion exactly-once. Before v21.10 SPDK returned an error for an untranslatable PCIe buffer and
 * also ran the callback, and released its request object twice. The shim therefore (1) checks every buffer
 * before SPDK sees it, so that this path is not taken, (2) drops a callback that runs inside a submission that then
 * returns an error, (3) defers one that runs inside a successful submission to the next poll, and (4) ignores a
 * callback for a request that is not outstanding.
 */
struct stn_spdk_request {
    stn_spdk_complete_fn complete;
    void *context;
    /* Private to the shim from here on. */
    struct stn_spdk_qpair *qpair;
    struct stn_spdk_request *next;
    uint16_t sct;
    uint16_t sc;
    bool dnr;
    uint8_t state;
};

#define STN_SPDK_FLAG_FUA 0x1u

/*
 * Submit a command; `lba` and `count` in logical blocks. The device owns the buffer until `complete`.
 * -ENOMEM: io_queue_requests are in use, poll and try again. -ENXIO: queue pair or controller lost. -EBUSY: the request
 * is outstanding already. -EINVAL: count 0 or an unknown flag, a buffer that is not 4-byte aligned, or a command that
 * could never fit. -EFAULT: the transport moves data by DMA and part of the buffer is not registered memory.
 * 0 means accepted, not "at the drive": SPDK queues what does not fit into the hardware queue.
 */
int stn_spdk_write(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                   struct stn_spdk_request *request, const void *buffer, uint64_t lba, uint32_t count, uint32_t flags);
int stn_spdk_read(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                  struct stn_spdk_request *request, void *buffer, uint64_t lba, uint32_t count, uint32_t flags);

/* Makes every write that had completed before it durable. Errors as above. */
int stn_spdk_flush(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                   struct stn_spdk_request *request);

/*
 * Asks the controller to abort `target`, outstanding on `qpair`; call on the queue pair's thread. `request` completes
 * through stn_spdk_controller_process_admin and shows only that the controller has answered: `target`'s own completion
 * shows whether and how it ended. -ENOENT: `target` is not at the controller. Otherwise errors as above.
 */
int stn_spdk_abort(struct stn_spdk_qpair *qpair, struct stn_spdk_request *target, struct stn_spdk_request *request);

/* ---- reservations ---- */

/* What stn_spdk_reservation_register does. REPLACE and UNREGISTER do not compare the current key. */
#define STN_SPDK_REGISTER 0u
#define STN_SPDK_UNREGISTER 1u
#define STN_SPDK_REPLACE 2u

/* What stn_spdk_reservation_acquire does. */
#define STN_SPDK_ACQUIRE 0u
#define STN_SPDK_PREEMPT 1u
#define STN_SPDK_PREEMPT_AND_ABORT 2u

/*
 * Reservation commands, as stn_spdk_flush: the same errors, and -EINVAL for an action that is not listed. The type is
 * Write Exclusive, Registrants Only: who is registered may write, everybody may read.
 */

/* Registers this controller's host under `key`, or ends that. `persist`: the drive keeps it over a power loss. */
int stn_spdk_reservation_register(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                  struct stn_spdk_request *request, uint64_t key, uint32_t action, bool persist);

/* Takes the reservation; a preemption takes it from who is registered under `other`, whose registration ends. */
int stn_spdk_reservation_acquire(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                 struct stn_spdk_request *request, uint64_t key, uint64_t other, uint32_t action);

/* Gives the reservation up; registrations stay. `clear`: ends it, even another host's, and all registrations. */
int stn_spdk_reservation_release(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                 struct stn_spdk_request *request, uint64_t key, bool clear);

/*
 * Reads the Reservation Status data structure, `length` bytes of it, a multiple of 4: in the extended form where the
 * controller has long host identifiers. For PCIe, `data` is memory of stn_spdk_dma_zmalloc. The target of SPDK before
 * v21.07 writes beyond its own memory when a registered host is not connected: do not ask it.
 */
int stn_spdk_reservation_report(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                struct stn_spdk_request *request, void *data, uint32_t length);

/* ---- error injection, for tests ---- */

/*
 * The next `count` commands with this opcode complete with sct/sc. do_not_submit: they never reach the controller and
 * complete after `hold_us`. One rule per opcode; qpair NULL: the admin queue.
 */
int stn_spdk_inject_error(struct stn_spdk_controller *controller, struct stn_spdk_qpair *qpair, uint8_t opcode,
                          bool do_not_submit, uint64_t hold_us, uint32_t count, uint8_t sct, uint8_t sc);
void stn_spdk_remove_injected_error(struct stn_spdk_controller *controller, struct stn_spdk_qpair *qpair,
                                    uint8_t opcode);

/* ---- memory ---- */

/*
 * Registers memory for DMA: start and length multiples of 2 MiB (4 KiB from SPDK v25.09), every page touched before.
 * With PCI it checks that each page got an address, since SPDK from v25.09 on reports success when it has none: then
 * nothing stays registered and -EFAULT is returned. -EBUSY: overlaps registered memory.
 */
int stn_spdk_mem_register(void *start, size_t length);

/* Exactly a range that was registered, with no command outstanding on it. */
int stn_spdk_mem_unregister(void *start, size_t length);

/*
 * True when a PCIe device can reach every byte. Always true in an environment without PCI: fabrics need no address, and
 * SPDK from v26.01 on has no map of them then.
 */
bool stn_spdk_mem_is_reachable(const void *start, size_t length);

/* Zeroed memory from the environment's huge pages, any NUMA node. `align` is 0 or a power of two. NULL: none left. */
void *stn_spdk_dma_zmalloc(size_t length, size_t align);

/* NULL is allowed. */
void stn_spdk_dma_free(void *memory);

#endif
