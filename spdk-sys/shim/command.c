/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs, commands and their completions. */

#include "internal.h"

_Static_assert(sizeof(struct spdk_nvme_cpl) == 16, "completion entry");
_Static_assert(SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS == 1u << 30, "FUA is bit 30 of dword 12");
_Static_assert(sizeof(struct stn_spdk_request) == 40, "shim.h's request");

/* A request goes IDLE, SUBMITTING, OUTSTANDING, IDLE. If it completes inside its submission, it takes the other two
 * states. */
enum request_state { IDLE, SUBMITTING, COMPLETED_WHILE_SUBMITTING, OUTSTANDING, DEFERRED };

struct stn_spdk_qpair *stn_spdk_qpair_alloc(struct stn_spdk_controller *controller,
                                            const struct stn_spdk_qpair_options *options)
{
    struct spdk_nvme_io_qpair_opts opts;
    struct stn_spdk_qpair *qpair = calloc(1, sizeof(*qpair));

    if (qpair == NULL) {
        return NULL;
    }
    memset(&opts, 0, sizeof(opts));
    spdk_nvme_ctrlr_get_default_io_qpair_opts(controller->spdk, &opts, sizeof(opts));
    if (options->io_queue_size != 0) {
        opts.io_queue_size = options->io_queue_size;
    }
    if (options->io_queue_requests != 0) {
        opts.io_queue_requests = options->io_queue_requests;
    }
    opts.delay_cmd_submit = options->delay_submit;
    /*
     * Connected separately: when alloc_io_qpair's own connect fails, v20.07 deletes the queue pair and leaves it on the
     * controller's list, where detaching frees it again.
     */
    opts.create_only = true;
    qpair->spdk = spdk_nvme_ctrlr_alloc_io_qpair(controller->spdk, &opts, sizeof(opts));
    if (qpair->spdk == NULL) {
        free(qpair);
        return NULL;
    }
    if (spdk_nvme_ctrlr_connect_io_qpair(controller->spdk, qpair->spdk) != 0) {
        spdk_nvme_ctrlr_free_io_qpair(qpair->spdk);
        free(qpair);
        return NULL;
    }
    qpair->controller = controller;
    qpair->deferred_tail = &qpair->deferred;
    pthread_mutex_lock(&controller->qpairs_lock);
    qpair->next = controller->qpairs;
    controller->qpairs = qpair;
    pthread_mutex_unlock(&controller->qpairs_lock);
    return qpair;
}

/* Calls `complete`. The request is idle first, so that the callee may submit it again. */
static void complete(struct stn_spdk_request *request, uint16_t sct, uint16_t sc, bool dnr)
{
    request->state = IDLE;
    request->complete(request->context, sct, sc, dnr);
}

/* Completes the requests deferred before this call; those that its callbacks defer wait for the next call. */
static int complete_deferred(struct stn_spdk_qpair *qpair)
{
    struct stn_spdk_request *request = qpair->deferred;
    int count = 0;

    qpair->deferred = NULL;
    qpair->deferred_tail = &qpair->deferred;
    while (request != NULL) {
        struct stn_spdk_request *next = request->next;

        complete(request, request->sct, request->sc, request->dnr);
        request = next;
        count++;
    }
    return count;
}

int stn_spdk_qpair_free(struct stn_spdk_qpair *qpair)
{
    struct stn_spdk_qpair **link;
    int rc;

    if (qpair == NULL) {
        return 0;
    }
    complete_deferred(qpair);
    rc = spdk_nvme_ctrlr_free_io_qpair(qpair->spdk);
    /* Callbacks of the line above may have tried to submit, though no command is accepted any more. */
    complete_deferred(qpair);
    pthread_mutex_lock(&qpair->controller->qpairs_lock);
    for (link = &qpair->controller->qpairs; *link != qpair; link = &(*link)->next) {
    }
    *link = qpair->next;
    pthread_mutex_unlock(&qpair->controller->qpairs_lock);
    free(qpair);
    return errno_of(rc);
}

int stn_spdk_qpair_reconnect(struct stn_spdk_qpair *qpair)
{
    /* A controller reset only marks a fabric's queue pair; the poll on its own thread disconnects it and aborts its
     * requests. */
    if (spdk_nvme_qpair_get_failure_reason(qpair->spdk) != SPDK_NVME_QPAIR_FAILURE_NONE) {
        complete_deferred(qpair);
        (void)spdk_nvme_qpair_process_completions(qpair->spdk, 0);
    }
    return spdk_nvme_ctrlr_reconnect_io_qpair(qpair->spdk);
}

bool stn_spdk_qpair_is_connected(struct stn_spdk_qpair *qpair)
{
    if (spdk_nvme_ctrlr_is_failed(qpair->controller->spdk)) {
        return false;
    }
#if SPDK_AT_LEAST(24, 1)
    return spdk_nvme_qpair_is_connected(qpair->spdk);
#else
    return spdk_nvme_qpair_get_failure_reason(qpair->spdk) == SPDK_NVME_QPAIR_FAILURE_NONE;
#endif
}

int stn_spdk_qpair_process_completions(struct stn_spdk_qpair *qpair, uint32_t max)
{
    int deferred = qpair->deferred != NULL ? complete_deferred(qpair) : 0;
    int rc = spdk_nvme_qpair_process_completions(qpair->spdk, max);

    return rc < 0 ? rc : rc + deferred;
}

void stn_spdk_on_complete(void *arg, const struct spdk_nvme_cpl *cpl)
{
    struct stn_spdk_request *request = arg;

    switch (request->state) {
    case OUTSTANDING:
        complete(request, cpl->status.sct, cpl->status.sc, cpl->status.dnr);
        break;
    case SUBMITTING:
        request->sct = cpl->status.sct;
        request->sc = cpl->status.sc;
        request->dnr = cpl->status.dnr;
        request->state = COMPLETED_WHILE_SUBMITTING;
        break;
    default:
        SPDK_ERRLOG("completion of a request that is not outstanding: ignored\n");
        break;
    }
}

/* Checks that SPDK can take this request and buffer; `length` 0 means no buffer. */
int stn_spdk_begin_submission(struct stn_spdk_qpair *qpair, struct stn_spdk_request *request, const void *buffer,
                              uint64_t length)
{
    if (request->state != IDLE) {
        return -EBUSY;
    }
    if (length > 0 && ((uintptr_t)buffer & 3) != 0) {
        return -EINVAL;
    }
    if (length > 0 && qpair->controller->needs_dma && !stn_spdk_mem_is_reachable(buffer, length)) {
        return -EFAULT;
    }
    request->qpair = qpair;
    request->next = NULL;
    request->state = SUBMITTING;
    return 0;
}

int stn_spdk_end_submission(struct stn_spdk_request *request, int rc)
{
    struct stn_spdk_qpair *qpair = request->qpair;

    if (rc != 0) {
        request->state = IDLE;
        /* The TCP transport returns -1 for a request that it cannot build. */
        return rc == -1 ? -EINVAL : rc;
    }
    if (request->state == COMPLETED_WHILE_SUBMITTING) {
        request->state = DEFERRED;
        *qpair->deferred_tail = request;
        qpair->deferred_tail = &request->next;
    } else {
        request->state = OUTSTANDING;
    }
    return 0;
}

/* SPDK's flags for ours, or -EINVAL. */
static int64_t io_flags(uint32_t flags)
{
    if ((flags & ~STN_SPDK_FLAG_FUA) != 0) {
        return -EINVAL;
    }
    return (flags & STN_SPDK_FLAG_FUA) != 0 ? (int64_t)SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS : 0;
}

int stn_spdk_write(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                   struct stn_spdk_request *request, const void *buffer, uint64_t lba, uint32_t count, uint32_t flags)
{
    struct spdk_nvme_ns *ns = spdk_ns(namespace_);
    int64_t spdk_flags = io_flags(flags);
    int rc;

    if (count == 0 || spdk_flags < 0) {
        return -EINVAL;
    }
    rc = stn_spdk_begin_submission(qpair, request, buffer, (uint64_t)count * spdk_nvme_ns_get_sector_size(ns));
    if (rc != 0) {
        return rc;
    }
    /* SPDK takes a pointer to non-const and does not write through it. */
    rc = spdk_nvme_ns_cmd_write(ns, qpair->spdk, (void *)(uintptr_t)buffer, lba, count, stn_spdk_on_complete, request,
                                (uint32_t)spdk_flags);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_read(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                  struct stn_spdk_request *request, void *buffer, uint64_t lba, uint32_t count, uint32_t flags)
{
    struct spdk_nvme_ns *ns = spdk_ns(namespace_);
    int64_t spdk_flags = io_flags(flags);
    int rc;

    if (count == 0 || spdk_flags < 0) {
        return -EINVAL;
    }
    rc = stn_spdk_begin_submission(qpair, request, buffer, (uint64_t)count * spdk_nvme_ns_get_sector_size(ns));
    if (rc != 0) {
        return rc;
    }
    rc = spdk_nvme_ns_cmd_read(ns, qpair->spdk, buffer, lba, count, stn_spdk_on_complete, request,
                               (uint32_t)spdk_flags);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_flush(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                   struct stn_spdk_request *request)
{
    int rc = stn_spdk_begin_submission(qpair, request, NULL, 0);

    if (rc != 0) {
        return rc;
    }
    rc = spdk_nvme_ns_cmd_flush(spdk_ns(namespace_), qpair->spdk, stn_spdk_on_complete, request);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_abort(struct stn_spdk_qpair *qpair, struct stn_spdk_request *target, struct stn_spdk_request *request)
{
    int rc;

    if (target->state != OUTSTANDING || target->qpair != qpair) {
        return -ENOENT;
    }
    rc = stn_spdk_begin_submission(qpair, request, NULL, 0);
    if (rc != 0) {
        return rc;
    }
    rc = spdk_nvme_ctrlr_cmd_abort_ext(qpair->controller->spdk, qpair->spdk, target, stn_spdk_on_complete, request);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_inject_error(struct stn_spdk_controller *controller, struct stn_spdk_qpair *qpair, uint8_t opcode,
                          bool do_not_submit, uint64_t hold_us, uint32_t count, uint8_t sct, uint8_t sc)
{
    return spdk_nvme_qpair_add_cmd_error_injection(controller->spdk, qpair != NULL ? qpair->spdk : NULL, opcode,
                                                   do_not_submit, hold_us, count, sct, sc);
}

void stn_spdk_remove_injected_error(struct stn_spdk_controller *controller, struct stn_spdk_qpair *qpair,
                                    uint8_t opcode)
{
    spdk_nvme_qpair_remove_cmd_error_injection(controller->spdk, qpair != NULL ? qpair->spdk : NULL, opcode);
}
