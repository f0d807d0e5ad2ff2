// SPDX-License-Identifier: Apache-2.0
//
// The library from C++: handles in unique_ptr, failures as exceptions.
//
//   c++ smoke.cpp $(pkg-config --cflags --libs stanchion) -o smoke
//   ./smoke DRIVE...
//
// With STN_EXAMPLE_FORMAT=1 in the environment the drives are formatted first.
#include <stanchion.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::int64_t check(std::int64_t result, const char *what)
{
    if (result >= 0)
        return result;
    std::string detail(stn_last_error(nullptr, 0) + 1, '\0');
    stn_last_error(&detail[0], detail.size());
    throw std::runtime_error(std::string(what) + ": " + stn_strerror(static_cast<int>(result)) +
                             ": " + detail.c_str());
}

struct ClosePool {
    void operator()(stn_pool *pool) const { stn_pool_close(pool); }
};
struct DestroySession {
    void operator()(stn_session *session) const { stn_session_destroy(session); }
};
using Pool = std::unique_ptr<stn_pool, ClosePool>;
using Session = std::unique_ptr<stn_session, DestroySession>;

Pool open_pool(const std::vector<const char *> &drives)
{
    const char *format = std::getenv("STN_EXAMPLE_FORMAT");
    if (format && std::string(format) == "1") {
        stn_format_opts opts{};
        opts.size = sizeof(opts);
        opts.flags = STN_FORMAT_FORCE;
        opts.drives = drives.data();
        opts.drive_count = static_cast<std::uint32_t>(drives.size());
        opts.create_bytes = 64u << 20;
        check(stn_format(&opts), "format");
    }
    stn_pool_opts opts{};
    opts.size = sizeof(opts);
    opts.drives = drives.data();
    opts.drive_count = static_cast<std::uint32_t>(drives.size());
    opts.huge_pages = STN_HUGE_PREFERRED;
    stn_pool *pool = nullptr;
    check(stn_pool_open(&opts, &pool), "open");
    return Pool(pool);
}

void run(stn_session *session, const stn_sqe &entry, const char *what)
{
    stn_cqe completion{};
    check(stn_submit(session, &entry, 1), what);
    check(stn_wait(session, &completion, 1, 1, -1), what);
    check(completion.result, what);
}

void round_trip(const std::vector<const char *> &drives)
{
    const std::uint64_t length = 3 * (1u << 20) + 17;
    Pool pool = open_pool(drives);
    stn_session *raw = nullptr;
    check(stn_session_create(pool.get(), nullptr, &raw), "session");
    Session session(raw);

    stn_checkpoint_info latest{};
    latest.size = sizeof(latest);
    if (stn_latest(pool.get(), "smoke", &latest) < 0)
        latest.step = 0;
    const std::string name = "smoke@" + std::to_string(latest.step + 1);

    void *memory = nullptr;
    std::uint32_t key = 0;
    check(stn_buf_alloc(session.get(), length, &memory, &key), "alloc");
    std::memset(memory, 0x42, length);
    stn_begin_opts opts{};
    opts.size = sizeof(opts);
    opts.name = name.c_str();
    opts.len_bytes = length;
    std::uint64_t checkpoint = 0;
    check(stn_begin(session.get(), &opts, &checkpoint), "begin");
    stn_sqe entry{};
    entry.opcode = STN_OP_WRITE;
    entry.buffer = key;
    entry.checkpoint = checkpoint;
    entry.len_bytes = length;
    run(session.get(), entry, "write");
    entry = stn_sqe{};
    entry.opcode = STN_OP_COMMIT;
    entry.checkpoint = checkpoint;
    run(session.get(), entry, "commit");

    std::vector<unsigned char> restored(length);
    stn_restore_opts restore{};
    restore.size = sizeof(restore);
    restore.name = name.c_str();
    check(stn_restore(pool.get(), &restore, restored.data(), restored.size()), "restore");
    if (restored != std::vector<unsigned char>(length, 0x42))
        throw std::runtime_error("the restored bytes differ");
    std::cout << "saved and restored " << name << " with libstanchion " << stn_version_string()
              << "\n";
}

} // namespace

int main(int argc, char **argv)
{
    try {
        if (argc < 2)
            throw std::runtime_error("usage: smoke DRIVE...");
        round_trip(std::vector<const char *>(argv + 1, argv + argc));
        return 0;
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
