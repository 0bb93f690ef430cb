#include "cuda_scratch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>

namespace onepass::cuda {
namespace {

constexpr std::size_t kLeast = std::size_t{64} << 10;
constexpr int kCaptureActive = 1;               // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr unsigned kNonBlocking = 1;            // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoDestructorSync = 1;       // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
constexpr unsigned kMoveReference = 1;          // CU_GRAPH_USER_OBJECT_MOVE
constexpr std::uintptr_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD
constexpr std::uint64_t kNoCapture = ~std::uint64_t{0};

struct Piece {
    Address address = 0;
    std::size_t bytes = 0;
};

// Context, capture, stream.
using Key = std::tuple<Context, std::uint64_t, std::uint64_t>;

// A piece that a graph holds: the driver gives it back when the graph and all that was made of it are gone.
struct Lease {
    Key key;
    Piece piece;
    bool held = true;  // else the graph never had it, and uses it all the same
    Lease* next = nullptr;
};

// Never destroyed: calls and graphs may outlive what runs at exit.
struct Pool {
    std::mutex mutex;
    std::map<Key, Piece> in_use;
    std::map<Context, std::vector<Piece>> free;  // that were a graph's
    std::map<Context, Stream> streams;           // to clear new pieces on
    std::atomic<Lease*> returned{nullptr};
};
Pool& pool = *new Pool;

// On a thread of the driver's, which may not wait for a lock of ours.
void give_back(void* argument) {
    auto* lease = static_cast<Lease*>(argument);
    lease->next = pool.returned.load(std::memory_order_relaxed);
    while (!pool.returned.compare_exchange_weak(lease->next, lease, std::memory_order_release)) {
    }
}

void take_returned() {
    for (Lease* lease = pool.returned.exchange(nullptr, std::memory_order_acquire); lease;) {
        if (lease->held) {
            pool.free[std::get<0>(lease->key)].push_back(lease->piece);
            // A capture that needed more in the end has another piece in its place.
            const auto found = pool.in_use.find(lease->key);
            if (found != pool.in_use.end() && found->second.address == lease->piece.address) pool.in_use.erase(found);
        }
        Lease* const next = lease->next;
        delete lease;
        lease = next;
    }
}

// A new piece, cleared on a stream of its own: nothing of this may become part of a capture.
Status make_piece(Context context, std::size_t bytes, Piece* piece) {
    const Driver& d = ready_driver();
    const OutsideCapture outside(d);
    Stream& stream = pool.streams[context];
    if (!stream) {
        if (const Status code = d.create_stream(&stream, kNonBlocking); code != kSuccess) return code;
    }
    Piece made{0, std::max(kLeast, std::bit_ceil(bytes))};
    Status code = d.allocate(&made.address, made.bytes);
    if (code != kSuccess) return code;
    code = d.set_bytes(made.address, 0, made.bytes, stream);
    if (code == kSuccess) code = d.synchronize_stream(stream);
    if (code != kSuccess) {
        d.free(made.address);
        return code;
    }
    *piece = made;
    return kSuccess;
}

Status take_piece(Context context, std::size_t bytes, Piece* piece) {
    auto& free = pool.free[context];
    const auto fits = std::find_if(free.begin(), free.end(), [&](const Piece& p) { return p.bytes >= bytes; });
    if (fits == free.end()) return make_piece(context, bytes, piece);
    *piece = *fits;
    free.erase(fits);
    return kSuccess;
}

// Without it the piece stays where it is for good.
void hand_to_graph(Graph graph, const Key& key, const Piece& piece) {
    const Driver& d = ready_driver();
    if (!d.create_user_object || !d.retain_user_object) return;
    auto* lease = new Lease{key, piece};
    UserObject object;
    if (d.create_user_object(&object, lease, give_back, 1, kNoDestructorSync) != kSuccess) {
        delete lease;
        return;
    }
    if (d.retain_user_object(graph, object, 1, kMoveReference) != kSuccess) {
        lease->held = false;
        d.release_user_object(object, 1);
    }
}

// Of the streams there are now: one handle stands for the default streams of all threads.
std::uint64_t handle_of(Stream stream) {
    static std::atomic<std::uint64_t> threads{0};
    static thread_local const std::uint64_t of_this_thread = 2 * ++threads + 1;  // odd, as no handle is
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    return handle == kPerThreadStream ? of_this_thread : handle;
}

// Handles come again when streams are destroyed, while what was put on them may still run; identities do not.
std::uint64_t identity_of(Stream stream) {
    const Driver& d = ready_driver();
    std::uint64_t id;
    if (d.stream_id && d.stream_id(stream, reinterpret_cast<unsigned long long*>(&id)) == kSuccess) return id;
    return handle_of(stream);
}

}  // namespace

bool has_scratch() noexcept {
    const Driver& d = ready_driver();
    return d.launch_ex && d.capture_info;
}

Status find_scratch(Context context, Stream stream, std::size_t bytes, Address* address) noexcept try {
    const Driver& d = ready_driver();
    int capturing = 0;
    unsigned long long capture = 0;
    Graph graph = nullptr;
    if (const Status code = d.capture_info(stream, &capturing, &capture, &graph, nullptr, nullptr); code != kSuccess)
        return code;
    const bool captured = capturing == kCaptureActive;
    // A capture knows streams by their handles, and they live as long as it does.
    const Key key{context, captured ? capture : kNoCapture, captured ? handle_of(stream) : identity_of(stream)};

    const std::lock_guard lock(pool.mutex);
    Piece& piece = pool.in_use[key];
    if (piece.bytes < bytes) {
        take_returned();
        // What was too small stays: launches that are under way use it.
        Piece larger;
        const Status code = captured ? take_piece(context, bytes, &larger) : make_piece(context, bytes, &larger);
        if (code != kSuccess) return code;
        pool.in_use[key] = larger;
        if (captured) hand_to_graph(graph, key, larger);
        *address = larger.address;
        return kSuccess;
    }
    *address = piece.address;
    return kSuccess;
} catch (const std::bad_alloc&) {
    return kOutOfMemory;
}

}  // namespace onepass::cuda
