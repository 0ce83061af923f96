// NCCL's pick for a size, from a file of `nccl-tuner export --format compiled`: read_picks FILE COLLECTIVE BYTES...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

struct Row {
    float bytes_per_us, latency_us;
    uint16_t channels, threads;
    int8_t algorithm, protocol, padding[2];
};

int main(int argc, char **argv) {
    std::ifstream file(argv[1], std::ios::binary);
    std::vector<char> data(std::istreambuf_iterator<char>(file), {});
    auto number = [&](size_t at) { uint64_t value; memcpy(&value, &data[at], 8); return value; };
    size_t at = 24 + (number(16) + 7) / 8 * 8;
    for (uint64_t tables = number(at); tables--;) {
        const char *name = &data[at += 8];
        uint64_t rows = number(at += 24);
        auto from = reinterpret_cast<const uint64_t *>(&data[at + 8]);
        auto row = reinterpret_cast<const Row *>(from + rows + 1);
        for (int i = 3; i < argc && !strcmp(name, argv[2]); i++) {
            uint64_t bytes = strtoull(argv[i], nullptr, 10);
            const Row &r = row[std::upper_bound(from, from + rows, bytes) - from - 1];
            float us = float(bytes) / r.bytes_per_us + r.latency_us;
            printf("%llu %d %d %d %d %.9g\n", (unsigned long long)bytes, r.algorithm, r.protocol, r.channels, r.threads, us);
        }
        at += 8 * (rows + 1) + 16 * rows;
    }
}
