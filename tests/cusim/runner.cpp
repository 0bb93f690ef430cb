// Runs launches that are described on standard input and writes what they did to standard output; simulator.py is the
// other end. Compiled without instrumentation, like the scheduler.
//
// A launch: 8-byte numbers
//     kernel, grid, threads, shared bytes, cooperative, cluster, seed, number of words, number of arrays
// the words of the Job, and for every array: the two words that are its address, its bytes, its offset from a multiple
// of 128, how far into it the address points, then the bytes. The answer: length of an error message and the message,
// then the arrays' bytes.
#include "runner.h"

#include <unistd.h>

#include <string>
#include <vector>

#ifdef CUSIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace {

bool read_exactly(void* to, std::size_t bytes) {
    auto* p = static_cast<char*>(to);
    while (bytes) {
        const ssize_t n = read(0, p, bytes);
        if (n <= 0) return false;
        p += n;
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

void write_exactly(const void* from, std::size_t bytes) {
    auto* p = static_cast<const char*>(from);
    while (bytes) {
        const ssize_t n = write(1, p, bytes);
        if (n <= 0) exit(1);
        p += n;
        bytes -= static_cast<std::size_t>(n);
    }
}

// Memory around an array is checked after the launch, and poisoned before it under AddressSanitizer.
constexpr std::size_t kMargin = 256;
constexpr unsigned char kUntouched = 0xa5;

struct Array {
    std::int64_t word, also, bytes, offset, into;
    unsigned char* block = nullptr;
    unsigned char* data() const { return block + kMargin + offset; }
    std::size_t size() const { return 2 * kMargin + static_cast<std::size_t>(bytes + offset); }
};

Array read_array() {
    std::int64_t head[5];
    if (!read_exactly(head, sizeof head)) exit(1);
    Array array{head[0], head[1], head[2], head[3], head[4]};
    void* block;
    if (posix_memalign(&block, 128, array.size()) != 0) exit(1);
    array.block = static_cast<unsigned char*>(block);
    memset(array.block, kUntouched, array.size());
    if (!read_exactly(array.data(), static_cast<std::size_t>(array.bytes))) exit(1);
    return array;
}

void guard([[maybe_unused]] const Array& array) {
#ifdef CUSIM_ASAN
    __asan_poison_memory_region(array.block, kMargin + array.offset);
    __asan_poison_memory_region(array.data() + array.bytes, kMargin);
#endif
}

bool unguard(const Array& array) {
#ifdef CUSIM_ASAN
    __asan_unpoison_memory_region(array.block, array.size());
#endif
    const unsigned char* end = array.block + array.size();
    for (const unsigned char* p = array.block; p < end; ++p) {
        if (p == array.data()) p += array.bytes;
        if (p < end && *p != kUntouched) return false;
    }
    return true;
}

const cusim::Entry* find(std::int64_t kernel) {
    for (std::size_t table = 0; table < kTableCount; ++table) {
        if (kernel < static_cast<std::int64_t>(kTableSizes[table])) return kTables[table] + kernel;
        kernel -= static_cast<std::int64_t>(kTableSizes[table]);
    }
    return nullptr;
}

}  // namespace

int main() {
    std::int64_t head[9];
    while (read_exactly(head, sizeof head)) {
        const auto [kernel, grid, threads, shared, cooperative, cluster, seed, word_count, array_count] = head;
        std::vector<std::uint64_t> words(static_cast<std::size_t>(word_count));
        if (!read_exactly(words.data(), words.size() * 8)) return 1;
        std::vector<Array> arrays;
        for (std::int64_t i = 0; i < array_count; ++i) {
            const Array& array = arrays.emplace_back(read_array());
            for (const std::int64_t word : {array.word, array.also})
                words[static_cast<std::size_t>(word)] = reinterpret_cast<std::uintptr_t>(array.data() + array.into);
        }
        std::string message;
        const cusim::Entry* entry = find(kernel);
        if (entry->job_bytes != words.size() * 8) {
            message = "the Job has " + std::to_string(entry->job_bytes) + " bytes, the plan " +
                      std::to_string(words.size() * 8);
        } else {
            for (const Array& array : arrays) guard(array);
            const char* error = entry->run(
                {static_cast<unsigned>(grid), static_cast<unsigned>(threads), static_cast<std::size_t>(shared),
                 cooperative != 0, static_cast<unsigned>(cluster), static_cast<std::uint64_t>(seed)},
                words.data());
            if (error) message = error;
            for (const Array& array : arrays) {
                if (!unguard(array) && message.empty()) message = "wrote outside an array";
            }
        }
        const std::int64_t length = static_cast<std::int64_t>(message.size());
        write_exactly(&length, sizeof length);
        write_exactly(message.data(), message.size());
        for (const Array& array : arrays) {
            write_exactly(array.data(), static_cast<std::size_t>(array.bytes));
            free(array.block);
        }
    }
}
