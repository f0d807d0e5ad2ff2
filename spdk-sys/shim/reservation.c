/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations: who may write to a namespace. */

#include "internal.h"

_Static_assert(sizeof(struct spdk_nvme_reservation_register_data) == 16, "reservation register");
_Static_assert(sizeof(struct spdk_nvme_reservation_acquire_data) == 16, "reservation acquire");
_Static_assert(sizeof(struct spdk_nvme_reservation_key_data) == 8, "reservation release");
_Static_assert(SPDK_NVME_RESERVE_REGISTER_KEY == STN_SPDK_REGISTER, "register");
_Static_assert(SPDK_NVME_RESERVE_UNREGISTER_KEY == STN_SPDK_UNREGISTER, "unregister");
_Static_assert(SPDK_NVME_RESERVE_REPLACE_KEY == STN_SPDK_REPLACE, "replace");
_Static_assert(SPDK_NVME_RESERVE_ACQUIRE == STN_SPDK_ACQUIRE, "acquire");
_Static_assert(SPDK_NVME_RESERVE_PREEMPT == STN_SPDK_PREEMPT, "preempt");
_Static_assert(SPDK_NVME_RESERVE_PREEMPT_ABORT == STN_SPDK_PREEMPT_AND_ABORT, "preempt and abort");

#define TYPE SPDK_NVME_RESERVE_WRITE_EXCLUSIVE_REG_ONLY

int stn_spdk_reservation_register(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                  struct stn_spdk_request *request, uint64_t key, uint32_t action, bool persist)
{
    struct spdk_nvme_reservation_register_data keys = { 0 };
    int rc;

    if (action > STN_SPDK_REPLACE) {
        return -EINVAL;
    }
    if (action == STN_SPDK_UNREGISTER) {
        keys.crkey = key;
    } else {
        keys.nrkey = key;
    }
    rc = stn_spdk_begin_submission(qpair, request, NULL, 0);
    if (rc != 0) {
        return rc;
    }
    /* SPDK copies the keys into its own memory. */
    rc = spdk_nvme_ns_cmd_reservation_register(
        spdk_ns(namespace_), qpair->spdk, &keys, action != STN_SPDK_REGISTER,
        (enum spdk_nvme_reservation_register_action)action,
        persist ? SPDK_NVME_RESERVE_PTPL_PERSIST_POWER_LOSS : SPDK_NVME_RESERVE_PTPL_NO_CHANGES, stn_spdk_on_complete,
        request);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_reservation_acquire(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                 struct stn_spdk_request *request, uint64_t key, uint64_t other, uint32_t action)
{
    struct spdk_nvme_reservation_acquire_data keys = { .crkey = key, .prkey = other };
    int rc;

    if (action > STN_SPDK_PREEMPT_AND_ABORT) {
        return -EINVAL;
    }
    rc = stn_spdk_begin_submission(qpair, request, NULL, 0);
    if (rc != 0) {
        return rc;
    }
    rc = spdk_nvme_ns_cmd_reservation_acquire(spdk_ns(namespace_), qpair->spdk, &keys, false,
                                              (enum spdk_nvme_reservation_acquire_action)action, TYPE,
                                              stn_spdk_on_complete, request);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_reservation_release(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                 struct stn_spdk_request *request, uint64_t key, bool clear)
{
    struct spdk_nvme_reservation_key_data keys = { .crkey = key };
    int rc = stn_spdk_begin_submission(qpair, request, NULL, 0);

    if (rc != 0) {
        return rc;
    }
    rc = spdk_nvme_ns_cmd_reservation_release(spdk_ns(namespace_), qpair->spdk, &keys, false,
                                              clear ? SPDK_NVME_RESERVE_CLEAR : SPDK_NVME_RESERVE_RELEASE, TYPE,
                                              stn_spdk_on_complete, request);
    return stn_spdk_end_submission(request, rc);
}

int stn_spdk_reservation_report(struct stn_spdk_qpair *qpair, struct stn_spdk_namespace *namespace_,
                                struct stn_spdk_request *request, void *data, uint32_t length)
{
    struct spdk_nvme_ctrlr *ctrlr = qpair->controller->spdk;
    struct spdk_nvme_cmd command;
    int rc;

    if (length == 0 || length % 4 != 0) {
        return -EINVAL;
    }
    rc = stn_spdk_begin_submission(qpair, request, data, length);
    if (rc != 0) {
        return rc;
    }
    /* Not SPDK's own call, which never asks for the extended form and a double word too much. */
    memset(&command, 0, sizeof(command));
    command.opc = SPDK_NVME_OPC_RESERVATION_REPORT;
    command.nsid = spdk_nvme_ns_get_id(spdk_ns(namespace_));
    command.cdw10 = length / 4 - 1;
    command.cdw11 = has_long_host_identifier(spdk_nvme_ctrlr_get_data(ctrlr)) ? 1 : 0;
    rc = spdk_nvme_ctrlr_cmd_io_raw(ctrlr, qpair->spdk, &command, data, length, stn_spdk_on_complete, request);
    return stn_spdk_end_submission(request, rc);
}
