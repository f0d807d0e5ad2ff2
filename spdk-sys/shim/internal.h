/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the shim share: SPDK's headers, their release, and the types that shim.h leaves opaque.
 * Every difference between SPDK releases is handled in this directory.
 */
#ifndef STN_SPDK_INTERNAL_H
#define STN_SPDK_INTERNAL_H

#include "../shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spdk/env.h>
#include <spdk/log.h>
#include <spdk/nvme.h>
#include <spdk/nvme_spec.h>
#include <spdk/version.h>

#define SPDK_AT_LEAST(major, minor) (SPDK_VERSION >= SPDK_VERSION_NUM(major, minor, 0))

#if !SPDK_AT_LEAST(20, 7)
#error "SPDK v20.07 or later is needed"
#endif

struct stn_spdk_controller {
    struct spdk_nvme_ctrlr *spdk;
    /* The transport reaches host memory by DMA, so a buffer needs a translation. */
    bool needs_dma;
    stn_spdk_timeout_fn timed_out;
    void *timed_out_context;
    /* Queue pairs are allocated and freed by their own threads, while a timeout on another one walks the list. */
    pthread_mutex_t qpairs_lock;
    struct stn_spdk_qpair *qpairs;
};

struct stn_spdk_qpair {
    struct spdk_nvme_qpair *spdk;
    struct stn_spdk_controller *controller;
    struct stn_spdk_qpair *next;
    /* Requests that completed inside their submission, oldest first. */
    struct stn_spdk_request *deferred;
    struct stn_spdk_request **deferred_tail;
};

/* A stn_spdk_namespace is SPDK's own namespace under another name. */
static inline struct spdk_nvme_ns *spdk_ns(struct stn_spdk_namespace *namespace_)
{
    return (struct spdk_nvme_ns *)namespace_;
}

/* Bit 0 of CTRATT; SPDK renamed its field. */
static inline bool has_long_host_identifier(const struct spdk_nvme_ctrlr_data *data)
{
    return (((const uint8_t *)data)[offsetof(struct spdk_nvme_ctrlr_data, ctratt)] & 1) != 0;
}

/* Some of SPDK's functions return -1, which would read as -EPERM. */
static inline int errno_of(int rc)
{
    return rc == -1 ? -EIO : rc;
}

/* Checks that SPDK can take this request and buffer, and marks the request; `length` 0 means no buffer. */
int stn_spdk_begin_submission(struct stn_spdk_qpair *qpair, struct stn_spdk_request *request, const void *buffer,
                              uint64_t length);

/* The end of a submission that SPDK answered with `rc`: what the caller of the shim gets. */
int stn_spdk_end_submission(struct stn_spdk_request *request, int rc);

/* SPDK's callback of every request; `arg` is the request. */
void stn_spdk_on_complete(void *arg, const struct spdk_nvme_cpl *cpl);

/* Between a successful stn_spdk_env_init and stn_spdk_env_fini. */
bool stn_spdk_env_is_ready(void);

#endif
