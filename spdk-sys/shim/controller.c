/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, controllers and namespaces. */

#include "internal.h"

/* What this file uses of the NVMe specification, through SPDK's headers: a different header must not compile. */
_Static_assert(sizeof(struct spdk_nvme_ctrlr_data) == 4096, "identify controller");
_Static_assert(sizeof(struct spdk_nvme_ns_data) == 4096, "identify namespace");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, sn) == 4, "serial number");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, mn) == 24, "model number");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, fr) == 64, "firmware revision");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, mdts) == 77, "MDTS");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, vwc) == 525, "volatile write cache");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, awupf) == 528, "atomic write unit power fail");
_Static_assert(sizeof(((struct spdk_nvme_ctrlr_opts *)0)->extended_host_id) == 16, "long host identifier");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, ctratt) == 96, "controller attributes");
_Static_assert(offsetof(struct spdk_nvme_ctrlr_data, oncs) == 520, "optional commands");
_Static_assert(offsetof(struct spdk_nvme_ns_data, nsrescap) == 31, "reservation capabilities");
_Static_assert(offsetof(struct spdk_nvme_ns_data, noiob) == 46, "namespace optimal I/O boundary");
_Static_assert(offsetof(struct spdk_nvme_ns_data, nguid) == 104, "NGUID");
_Static_assert(offsetof(struct spdk_nvme_ns_data, eui64) == 120, "EUI64");
/* What shim.h promises to Rust. */
_Static_assert(sizeof(((struct stn_spdk_address *)0)->transport) == SPDK_NVMF_TRSTRING_MAX_LEN + 1, "transport");
_Static_assert(sizeof(((struct stn_spdk_address *)0)->traddr) == SPDK_NVMF_TRADDR_MAX_LEN + 1, "traddr");
_Static_assert(sizeof(((struct stn_spdk_address *)0)->trsvcid) == SPDK_NVMF_TRSVCID_MAX_LEN + 1, "trsvcid");
_Static_assert(sizeof(((struct stn_spdk_address *)0)->subnqn) == SPDK_NVMF_NQN_MAX_LEN + 1, "subnqn");

/* NSATTR of identify namespace; SPDK has a name for it only since v24.01. */
#define NSATTR_BYTE 99
#define NSATTR_WRITE_PROTECTED 0x1

/* SPDK renamed the field of ONCS. */
#define ONCS_BYTE 520
#define ONCS_RESERVATIONS 0x20

static int parse_address(const char *text, struct spdk_nvme_transport_id *trid)
{
    memset(trid, 0, sizeof(*trid));
    /* No transport named: SPDK would take it for PCIe. */
    if (text == NULL || strstr(text, "trtype") == NULL) {
        return -EINVAL;
    }
    if (spdk_nvme_transport_id_parse(trid, text) != 0 || trid->trtype == SPDK_NVME_TRANSPORT_CUSTOM) {
        return -EINVAL;
    }
    return 0;
}

int stn_spdk_address_parse(const char *text, struct stn_spdk_address *address)
{
    struct spdk_nvme_transport_id trid;
    int rc = parse_address(text, &trid);

    memset(address, 0, sizeof(*address));
    if (rc != 0) {
        return rc;
    }
    snprintf(address->transport, sizeof(address->transport), "%s", trid.trstring);
    snprintf(address->traddr, sizeof(address->traddr), "%s", trid.traddr);
    snprintf(address->trsvcid, sizeof(address->trsvcid), "%s", trid.trsvcid);
    snprintf(address->subnqn, sizeof(address->subnqn), "%s", trid.subnqn);
    address->is_pcie = trid.trtype == SPDK_NVME_TRANSPORT_PCIE;
    return 0;
}

/* Fabrics find memory by what was registered (RDMA) or copy it (TCP); neither asks SPDK's map of addresses. */
static bool transport_needs_dma(const struct spdk_nvme_transport_id *trid)
{
    return trid->trtype == SPDK_NVME_TRANSPORT_PCIE;
}

int stn_spdk_controller_connect(const char *address, const struct stn_spdk_connect_options *options,
                                struct stn_spdk_controller **controller)
{
    struct spdk_nvme_transport_id trid;
    struct spdk_nvme_ctrlr_opts opts;
    struct stn_spdk_controller *made;
    int rc;

    *controller = NULL;
    if (!stn_spdk_env_is_ready()) {
        return -EPERM;
    }
    rc = parse_address(address, &trid);
    if (rc != 0) {
        return rc;
    }
    if (!spdk_nvme_transport_available_by_name(trid.trstring)) {
        return -EPROTONOSUPPORT;
    }
    memset(&opts, 0, sizeof(opts));
    spdk_nvme_ctrlr_get_default_ctrlr_opts(&opts, sizeof(opts));
    if (options->hostnqn != NULL) {
        if (strlen(options->hostnqn) >= sizeof(opts.hostnqn)) {
            return -EINVAL;
        }
        snprintf(opts.hostnqn, sizeof(opts.hostnqn), "%s", options->hostnqn);
    }
    if (options->host_identifier != NULL) {
        memcpy(opts.host_id, options->host_identifier, sizeof(opts.host_id));
        memcpy(opts.extended_host_id, options->host_identifier, sizeof(opts.extended_host_id));
    }
    if (options->num_io_queues != 0) {
        opts.num_io_queues = options->num_io_queues;
    }
    if (options->io_queue_size != 0) {
        opts.io_queue_size = options->io_queue_size;
    }
    if (options->io_queue_requests != 0) {
        opts.io_queue_requests = options->io_queue_requests;
    }
    if (options->keep_alive_timeout_ms != 0) {
        opts.keep_alive_timeout_ms = options->keep_alive_timeout_ms;
    }
    if (options->admin_timeout_ms != 0) {
        opts.admin_timeout_ms = options->admin_timeout_ms;
    }
    opts.disable_error_logging = options->no_error_logging;

    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return -ENOMEM;
    }
    made->spdk = spdk_nvme_connect(&trid, &opts, sizeof(opts));
    if (made->spdk == NULL) {
        free(made);
        return -ENODEV;
    }
    made->needs_dma = transport_needs_dma(&trid);
    pthread_mutex_init(&made->qpairs_lock, NULL);
    *controller = made;
    return 0;
}

int stn_spdk_controller_detach(struct stn_spdk_controller *controller)
{
    enum spdk_log_level level = spdk_log_get_print_level();
    bool has_qpairs;
    int rc;

    pthread_mutex_lock(&controller->qpairs_lock);
    has_qpairs = controller->qpairs != NULL;
    pthread_mutex_unlock(&controller->qpairs_lock);
    if (has_qpairs) {
        return -EBUSY;
    }
    /* For a failed controller SPDK logs that an orderly shutdown is not possible. */
    if (spdk_nvme_ctrlr_is_failed(controller->spdk)) {
        spdk_log_set_print_level(SPDK_LOG_DISABLED);
    }
    rc = spdk_nvme_detach(controller->spdk);
    spdk_log_set_print_level(level);
    pthread_mutex_destroy(&controller->qpairs_lock);
    free(controller);
    return errno_of(rc);
}

struct attached {
    struct spdk_nvme_ctrlr *controllers[256];
    size_t count;
};

static bool want_controller(void *context, const struct spdk_nvme_transport_id *trid, struct spdk_nvme_ctrlr_opts *opts)
{
    (void)trid;
    (void)opts;
    return ((struct attached *)context)->count < sizeof(((struct attached *)0)->controllers) / sizeof(void *);
}

static void note_controller(void *context, const struct spdk_nvme_transport_id *trid, struct spdk_nvme_ctrlr *ctrlr,
                            const struct spdk_nvme_ctrlr_opts *opts)
{
    struct attached *attached = context;

    (void)trid;
    (void)opts;
    /* want_controller runs for all controllers first, so it alone cannot keep the count within the array. */
    if (attached->count == sizeof(attached->controllers) / sizeof(attached->controllers[0])) {
        spdk_nvme_detach(ctrlr);
        return;
    }
    attached->controllers[attached->count++] = ctrlr;
}

int stn_spdk_pcie_list(stn_spdk_visit_fn visit, void *context)
{
    struct spdk_nvme_transport_id trid;
    struct attached *attached;
    char address[sizeof(trid.traddr) + 32];
    size_t i;
    int rc;

    if (!stn_spdk_env_is_ready()) {
        return -EPERM;
    }
    attached = calloc(1, sizeof(*attached));
    if (attached == NULL) {
        return -ENOMEM;
    }
    memset(&trid, 0, sizeof(trid));
    spdk_nvme_trid_populate_transport(&trid, SPDK_NVME_TRANSPORT_PCIE);
    rc = spdk_nvme_probe(&trid, attached, want_controller, note_controller, NULL);
    for (i = 0; i < attached->count; i++) {
        struct stn_spdk_controller borrowed = { .spdk = attached->controllers[i], .needs_dma = true };

        snprintf(address, sizeof(address), "trtype:PCIe traddr:%s",
                 spdk_nvme_ctrlr_get_transport_id(borrowed.spdk)->traddr);
        pthread_mutex_init(&borrowed.qpairs_lock, NULL);
        visit(context, address, &borrowed);
        pthread_mutex_destroy(&borrowed.qpairs_lock);
        spdk_nvme_detach(borrowed.spdk);
    }
    /* A probe that attached some controllers and failed on another still counts those. */
    rc = attached->count > 0 || rc == 0 ? (int)attached->count : -EIO;
    free(attached);
    return rc;
}

void stn_spdk_controller_facts(struct stn_spdk_controller *controller, struct stn_spdk_controller_facts *facts)
{
    const struct spdk_nvme_ctrlr_data *data = spdk_nvme_ctrlr_get_data(controller->spdk);

    memset(facts, 0, sizeof(*facts));
    memcpy(facts->serial, data->sn, sizeof(facts->serial) - 1);
    memcpy(facts->model, data->mn, sizeof(facts->model) - 1);
    memcpy(facts->firmware, data->fr, sizeof(facts->firmware) - 1);
    facts->pci_vendor = data->vid;
    facts->namespace_count = spdk_nvme_ctrlr_get_num_ns(controller->spdk);
    facts->max_transfer_bytes = spdk_nvme_ctrlr_get_max_xfer_size(controller->spdk);
    facts->mdts = data->mdts;
    facts->has_volatile_write_cache = data->vwc.present != 0;
    /* AWUPF 0xFFFF means 65536 blocks; 65535 is close enough and fits. */
    facts->atomic_write_power_fail_blocks = data->awupf == UINT16_MAX ? UINT16_MAX : (uint16_t)(data->awupf + 1);
    facts->has_reservations = (((const uint8_t *)data)[ONCS_BYTE] & ONCS_RESERVATIONS) != 0;
    facts->has_long_host_identifier = has_long_host_identifier(data);
}

/* On the heap: a controller may still complete it after the timeout. */
struct log_request {
    uint8_t log[512];
    bool is_abandoned;
    bool is_done;
    bool has_failed;
};

static void on_log_page(void *context, const struct spdk_nvme_cpl *completion)
{
    struct log_request *request = context;

    if (request->is_abandoned) {
        free(request);
        return;
    }
    request->has_failed = spdk_nvme_cpl_is_error(completion);
    request->is_done = true;
}

int stn_spdk_controller_health(struct stn_spdk_controller *controller, void *log, size_t length)
{
    uint64_t give_up_at = spdk_get_ticks() + 5 * spdk_get_ticks_hz();
    struct log_request *request;
    int rc;

    if (length == 0 || length % 4 != 0 || length > sizeof(request->log)) {
        return -EINVAL;
    }
    request = calloc(1, sizeof(*request));
    if (request == NULL) {
        return -ENOMEM;
    }
    /* SPDK copies through its own DMA memory. */
    rc = spdk_nvme_ctrlr_cmd_get_log_page(controller->spdk, SPDK_NVME_LOG_HEALTH_INFORMATION, SPDK_NVME_GLOBAL_NS_TAG,
                                          request->log, (uint32_t)length, 0, on_log_page, request);
    if (rc != 0) {
        free(request);
        return errno_of(rc);
    }
    while (!request->is_done) {
        rc = spdk_nvme_ctrlr_process_admin_completions(controller->spdk);
        if (!request->is_done && (rc < 0 || spdk_get_ticks() > give_up_at)) {
            request->is_abandoned = true;
            return rc < 0 ? errno_of(rc) : -ETIMEDOUT;
        }
    }
    rc = request->has_failed ? -EIO : 0;
    if (rc == 0) {
        memcpy(log, request->log, length);
    }
    free(request);
    return rc;
}

uint32_t stn_spdk_controller_next_namespace(struct stn_spdk_controller *controller, uint32_t previous)
{
    return previous == 0 ? spdk_nvme_ctrlr_get_first_active_ns(controller->spdk)
                         : spdk_nvme_ctrlr_get_next_active_ns(controller->spdk, previous);
}

struct stn_spdk_namespace *stn_spdk_controller_namespace(struct stn_spdk_controller *controller, uint32_t id)
{
    struct spdk_nvme_ns *ns = spdk_nvme_ctrlr_get_ns(controller->spdk, id);

    return ns != NULL && spdk_nvme_ns_is_active(ns) ? (struct stn_spdk_namespace *)ns : NULL;
}

int stn_spdk_controller_process_admin(struct stn_spdk_controller *controller)
{
    return spdk_nvme_ctrlr_process_admin_completions(controller->spdk);
}

bool stn_spdk_controller_is_failed(struct stn_spdk_controller *controller)
{
    return spdk_nvme_ctrlr_is_failed(controller->spdk);
}

bool stn_spdk_controller_is_removed(struct stn_spdk_controller *controller)
{
    struct spdk_pci_device *device;

    if (!controller->needs_dma) {
        return false;
    }
    /* NULL for a transport with DMA that is not a PCI function, such as RDMA. */
    device = spdk_nvme_ctrlr_get_pci_device(controller->spdk);
    return device != NULL && spdk_pci_device_is_removed(device);
}

bool stn_spdk_controller_is_absent(struct stn_spdk_controller *controller)
{
    /* For every other transport this would be a command to the target. */
    if (!controller->needs_dma || spdk_nvme_ctrlr_get_pci_device(controller->spdk) == NULL) {
        return false;
    }
    return spdk_nvme_ctrlr_get_regs_csts(controller->spdk).raw == UINT32_MAX;
}

void stn_spdk_controller_fail(struct stn_spdk_controller *controller)
{
    enum spdk_log_level level = spdk_log_get_print_level();

    /* SPDK logs it as an error, although it succeeds. */
    spdk_log_set_print_level(SPDK_LOG_DISABLED);
    spdk_nvme_ctrlr_fail(controller->spdk);
    spdk_log_set_print_level(level);
}

int stn_spdk_controller_reset(struct stn_spdk_controller *controller)
{
    int rc = spdk_nvme_ctrlr_reset(controller->spdk);

    return errno_of(rc);
}

bool stn_spdk_controller_stop_dma(struct stn_spdk_controller *controller)
{
    const uint32_t command_register = 4;
    const uint16_t bus_master = 1u << 2;
    struct spdk_pci_device *device;
    uint16_t command = 0;

    device = controller->needs_dma ? spdk_nvme_ctrlr_get_pci_device(controller->spdk) : NULL;
    if (device == NULL || spdk_pci_device_cfg_read16(device, &command, command_register) != 0) {
        return false;
    }
    /* All ones is how a function reads that is not there. */
    if (command == UINT16_MAX) {
        return true;
    }
    if (spdk_pci_device_cfg_write16(device, command & (uint16_t)~bus_master, command_register) != 0 ||
        spdk_pci_device_cfg_read16(device, &command, command_register) != 0) {
        return false;
    }
    return command == UINT16_MAX || (command & bus_master) == 0;
}

static void on_timeout(void *arg, struct spdk_nvme_ctrlr *ctrlr, struct spdk_nvme_qpair *spdk_qpair, uint16_t cid)
{
    struct stn_spdk_controller *controller = arg;
    struct stn_spdk_qpair *qpair = NULL;

    (void)ctrlr;
    if (spdk_qpair != NULL) {
        pthread_mutex_lock(&controller->qpairs_lock);
        for (qpair = controller->qpairs; qpair != NULL && qpair->spdk != spdk_qpair; qpair = qpair->next) {
        }
        pthread_mutex_unlock(&controller->qpairs_lock);
        if (qpair == NULL) {
            return;
        }
    }
    controller->timed_out(controller->timed_out_context, qpair, cid);
}

void stn_spdk_controller_on_timeout(struct stn_spdk_controller *controller, uint64_t io_limit_us,
                                    uint64_t admin_limit_us, stn_spdk_timeout_fn timed_out, void *context)
{
    spdk_nvme_timeout_cb callback = timed_out != NULL ? on_timeout : NULL;

    controller->timed_out = timed_out;
    controller->timed_out_context = context;
#if SPDK_AT_LEAST(21, 7)
    spdk_nvme_ctrlr_register_timeout_callback(controller->spdk, io_limit_us, admin_limit_us, callback, controller);
#else
    (void)admin_limit_us;
    spdk_nvme_ctrlr_register_timeout_callback(controller->spdk, io_limit_us, callback, controller);
#endif
}

void stn_spdk_namespace_info(struct stn_spdk_namespace *namespace_, struct stn_spdk_namespace_info *facts)
{
    struct spdk_nvme_ns *ns = spdk_ns(namespace_);
    const struct spdk_nvme_ns_data *data = spdk_nvme_ns_get_data(ns);

    memset(facts, 0, sizeof(*facts));
    facts->id = spdk_nvme_ns_get_id(ns);
    facts->sector_bytes = spdk_nvme_ns_get_sector_size(ns);
    facts->metadata_bytes = spdk_nvme_ns_get_md_size(ns);
    facts->sector_count = spdk_nvme_ns_get_num_sectors(ns);
    facts->optimal_boundary_sectors = data->noiob;
    memcpy(facts->nguid, data->nguid, sizeof(facts->nguid));
    memcpy(facts->eui64, &data->eui64, sizeof(facts->eui64));
    facts->is_write_protected = (((const uint8_t *)data)[NSATTR_BYTE] & NSATTR_WRITE_PROTECTED) != 0;
    facts->reservations = data->nsrescap.raw;
#if SPDK_AT_LEAST(20, 10)
    facts->command_set = (uint8_t)spdk_nvme_ns_get_csi(ns);
#endif
}
