#include "dofla/data/tokenize.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"

namespace dofla {
namespace {

constexpr size_t kBatchBytes = size_t{64} << 10;  // of text that is handed to a thread at once

struct Document {
  std::string text;  // empty once it is encoded
  SkippedLines skipped;
  TokenIds ids = {};
  std::exception_ptr defect = {};  // of its tokens, or of the text that should have followed
};

// Some documents in a row.
struct DocumentBatch {
  std::vector<Document> documents = {};
  size_t bytes = 0;
  size_t files = 0;  // opened so far
  bool encoded = false;
};

void encode_all(const Encode& encode, int64_t vocabulary, DocumentBatch& batch) {
  for (Document& document : batch.documents) {
    if (document.defect) continue;
    try {
      document.ids = encode(document.text);
      document.text = {};  // the two together are what takes most memory
      for (const int64_t id : document.ids)
        if (id < 0 || id >= vocabulary)
          fail("the tokenizer gives id {}, but the model's vocabulary has {}", id, vocabulary);
    } catch (...) {
      document.defect = std::current_exception();
    }
  }
}

// Threads that encode batches, which stay where they are until they are encoded.
class EncoderPool {
 public:
  EncoderPool(int threads, const Encode& encode, int64_t vocabulary)
      : encode_(encode), vocabulary_(vocabulary) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~EncoderPool() {
    {
      const std::lock_guard lock(mutex_);
      waiting_.clear();
      closed_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  void add(DocumentBatch& batch) {
    if (threads_.empty()) {
      encode_all(encode_, vocabulary_, batch);
      batch.encoded = true;
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(&batch);
    }
    changed_.notify_all();
  }
  void wait_for(const DocumentBatch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batch.encoded; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
      if (closed_) return;
      DocumentBatch* batch = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      encode_all(encode_, vocabulary_, *batch);
      lock.lock();
      batch->encoded = true;
      changed_.notify_all();
    }
  }

  const Encode& encode_;
  const int64_t vocabulary_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<DocumentBatch*> waiting_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

class Tokenizing {
 public:
  Tokenizing(const TextFiles& files, const TokenizeOptions& options,
             const std::function<void(std::span<const int64_t> ids)>& take,
             const Progress& progress)
      : documents_(files, options.documents), options_(options), take_(take), progress_(progress) {}

  Tokenized run(const Encode& encode) {
    const int threads = options_.threads > 0 ? options_.threads : thread_count();
    const size_t ahead = options_.ahead * static_cast<size_t>(threads);
    std::deque<DocumentBatch> batches;  // read and not yet taken
    EncoderPool pool(threads > 1 ? threads : 0, encode, options_.vocabulary);
    while (!full()) {
      if (!read_all_ && (batches.empty() || (threads > 1 && bytes_ahead_ < ahead))) {
        pool.add(batches.emplace_back(read_batch()));
        continue;
      }
      if (batches.empty()) break;
      pool.wait_for(batches.front());
      take(batches.front());
      batches.pop_front();
    }
    if (!full()) result_.skipped = documents_.skipped();
    return result_;
  }

 private:
  bool full() const { return options_.most > 0 && result_.tokens == options_.most; }

  DocumentBatch read_batch() {
    DocumentBatch batch;
    while (batch.bytes < kBatchBytes && !read_all_) {
      Document document;
      try {
        std::optional<std::string> text = documents_.next();
        if (!text) {
          read_all_ = true;
          break;
        }
        document.text = std::move(*text);
      } catch (const Error&) {
        document.defect = std::current_exception();
        read_all_ = true;
      }
      document.skipped = documents_.skipped();
      batch.bytes += document.text.size();
      batch.documents.push_back(std::move(document));
    }
    batch.files = documents_.files_opened();
    bytes_ahead_ += batch.bytes;
    result_.most_bytes_ahead = std::max(result_.most_bytes_ahead, bytes_ahead_);
    return batch;
  }

  void take(const DocumentBatch& batch) {
    result_.files = batch.files;
    for (const Document& document : batch.documents) {
      if (full()) return;
      if (document.defect) std::rethrow_exception(document.defect);
      if (started_) join();
      started_ = true;
      hand_on(document.ids);
      result_.skipped = document.skipped;
    }
    bytes_ahead_ -= batch.bytes;
    report(progress_, {"read the text", result_.tokens, 0, "tokens"});
  }

  void join() {
    if (!options_.end_of_text)
      fail(
          "the model has no end-of-text token (eos_token_id) to join several documents by; give it "
          "one document, or token ids");
    hand_on(std::span(&*options_.end_of_text, 1));
  }

  void hand_on(std::span<const int64_t> ids) {
    const int64_t room =
        (options_.most > 0 ? options_.most : std::numeric_limits<int64_t>::max()) - result_.tokens;
    ids = ids.first(std::min(ids.size(), static_cast<size_t>(room)));
    if (ids.empty()) return;
    take_(ids);
    result_.tokens += std::ssize(ids);
  }

  DocumentReader documents_;
  const TokenizeOptions& options_;
  const std::function<void(std::span<const int64_t> ids)>& take_;
  const Progress& progress_;
  Tokenized result_;
  size_t bytes_ahead_ = 0;
  bool read_all_ = false;
  bool started_ = false;
};

}  // namespace

Tokenized tokenize(const TextFiles& files, const Encode& encode, const TokenizeOptions& options,
                   const std::function<void(std::span<const int64_t> ids)>& take,
                   const Progress& progress) {
  require(options.vocabulary > 0, "tokenize: a vocabulary of {}", options.vocabulary);
  return Tokenizing(files, options, take, progress).run(encode);
}

}  // namespace dofla
