// Tokenizing speed of one core, and the time to load a tokenizer, on the built-in Wikipedia text.
//   build/release/bench/tokenizer_bench [MODEL_FOLDER]…
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include <zstd.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/json.h"
#include "dofla/core/mapped_file.h"

namespace dofla {
namespace {

constexpr int kRepeats = 7;

std::vector<std::string> articles() {
  const MappedFile file(fs::path(DOFLA_SOURCE_DIR) / "assets/wikipedia.jsonl.zst");
  const auto packed = file.bytes();
  std::string lines(ZSTD_getFrameContentSize(packed.data(), packed.size()), '\0');
  ZSTD_decompress(lines.data(), lines.size(), packed.data(), packed.size());
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    texts.push_back(Json::parse(lines.substr(begin, end - begin)).at("text"));
    begin = end + 1;
  }
  return texts;
}

// Of this thread: what others run at the same time is not counted.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Work>
double median_seconds(const Work& work) {
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = cpu_seconds();
    work();
    times.push_back(cpu_seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return times[kRepeats / 2];
}

void measure(const fs::path& folder, const std::vector<std::string>& texts) {
  const double load = median_seconds([&] { Tokenizer::load(folder); });
  double megabytes = 0;
  for (const std::string& text : texts) megabytes += static_cast<double>(text.size()) * 1e-6;

  size_t tokens = 0;
  const auto encode_all = [&](const Tokenizer& tokenizer) {
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
  };
  const Tokenizer warm = Tokenizer::load(folder);
  encode_all(warm);
  const double again = median_seconds([&] { encode_all(warm); });
  std::vector<Tokenizer> fresh;
  for (int i = 0; i < kRepeats; ++i) fresh.push_back(Tokenizer::load(folder));
  auto next = fresh.begin();
  const double first = median_seconds([&] { encode_all(*next++); });

  std::printf(
      "%-40s load %5.1f ms   encode %6.1f MB/s   with an empty cache %6.1f MB/s   "
      "(median of %d; %.2f MB, %zu tokens)\n",
      folder.c_str(), load * 1e3, megabytes / again, megabytes / first, kRepeats, megabytes,
      tokens);
}

}  // namespace
}  // namespace dofla

int main(int argc, char** argv) {
  const dofla::fs::path source = DOFLA_SOURCE_DIR;
  std::vector<dofla::fs::path> folders(argv + 1, argv + argc);
  if (folders.empty())
    folders = {source / "tests/tokenizers/gpt2", source / "tests/tokenizers/gpt_neox",
               source / "tests/models/stories260K", source / "assets/wiki-mini"};
  const std::vector<std::string> texts = dofla::articles();
  for (const dofla::fs::path& folder : folders) dofla::measure(folder, texts);
}
