#include "dofla/reproduce/run.h"

#include <chrono>
#include <new>

#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"
#include "dofla/core/version.h"

namespace dofla {
namespace {

constexpr std::string_view kFormat = "dofla.run";
constexpr int64_t kVersion = 1;

RunRecord read_record(const fs::path& path) {
  const Json json = load_json(path);
  require_format(json, kFormat, kVersion, path.string());
  return {.name = json.at("name").get<std::string>(),
          .settings = json.at("settings"),
          .result = json.value("result", Json()),
          .error = json.value("error", ""),
          .seconds = json.at("seconds").get<double>()};
}

// How long the runs of a kind take, from those that are known.
class Estimate {
 public:
  void add(const std::string& kind, double seconds) {
    for (Mean* mean : {&kinds_[kind], &all_}) {
      mean->sum += seconds;
      ++mean->count;
    }
  }
  std::optional<double> seconds_of(const std::string& kind) const {
    if (all_.count == 0) return std::nullopt;
    const auto found = kinds_.find(kind);
    const Mean& mean = found == kinds_.end() ? all_ : found->second;
    return mean.sum / mean.count;
  }

 private:
  struct Mean {
    double sum = 0;
    double count = 0;
  };
  std::map<std::string, Mean> kinds_;
  Mean all_;
};

bool went_well(const RunFolder& folder, const Run& run) {
  const RunRecord* record = folder.find(run.name);
  return record != nullptr && !record->failed();
}

// Whether there is a record with the settings that the run has now.
bool is_done(const RunFolder& folder, const Run& run) {
  if (!went_well(folder, run)) return false;
  try {
    return folder.find(run.name)->settings == run.settings();
  } catch (const std::exception&) {
    return false;  // what it needs is gone: doing it will say so
  }
}

RunRecord attempt(const Run& run, const Progress& progress) {
  using Clock = std::chrono::steady_clock;
  RunRecord record;
  record.name = run.name;
  const auto start = Clock::now();
  try {
    record.settings = run.settings();
    record.result = run.work(progress);
  } catch (const Cancelled&) {
    throw;  // not a failure of the run: it goes on another time
  } catch (const std::bad_alloc&) {
    record.error = "out of memory";
  } catch (const std::exception& error) {
    record.error = *error.what() == '\0' ? "failed without a word" : error.what();
  }
  record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return record;
}

// Later runs that went well before count as done: their settings rarely change.
std::optional<double> seconds_left(const std::vector<const Run*>& runs, size_t from,
                                   const RunFolder& folder, const Estimate& estimate) {
  double sum = 0;
  for (size_t i = from; i < runs.size(); ++i) {
    if (i > from && went_well(folder, *runs[i])) continue;
    const auto seconds = estimate.seconds_of(runs[i]->kind);
    if (!seconds) return std::nullopt;
    sum += *seconds;
  }
  return sum;
}

}  // namespace

RunFolder::RunFolder(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("{}: cannot make the folder: {}", folder.string(), error.message());
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    try {
      RunRecord record = read_record(entry.path());
      if (record.name == entry.path().stem()) records_[record.name] = std::move(record);
    } catch (const std::exception&) {
      // A damaged record is worth as much as none: the run is done again and writes a new one.
    }
  }
}

const RunRecord* RunFolder::find(const std::string& name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

const Json& RunFolder::result(const std::string& name) const {
  const RunRecord* record = find(name);
  if (record == nullptr) fail("needs {}, which has not been run", name);
  if (record->failed()) fail("needs {}, which failed", name);
  return record->result;
}

void RunFolder::save(RunRecord record) {
  Json json = {{"format", kFormat},   {"version", kVersion},         {"dofla", version()},
               {"name", record.name}, {"settings", record.settings}, {"seconds", record.seconds}};
  if (record.failed())
    json["error"] = record.error;
  else
    json["result"] = record.result;
  write_whole(folder_ / (record.name + ".json"),
              json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  records_[record.name] = std::move(record);
}

void RunFolder::disregard(const std::string& name) {
  records_.erase(name);
}

MatrixOutcome run_matrix(const std::vector<Run>& runs, RunFolder& folder,
                         const MatrixObserver& observer) {
  MatrixOutcome outcome;
  Estimate estimate;
  std::vector<const Run*> wanted;
  for (const Run& run : runs) {
    if (went_well(folder, run)) estimate.add(run.kind, folder.find(run.name)->seconds);
    if (!observer.wanted || observer.wanted(run))
      wanted.push_back(&run);
    else if (!is_done(folder, run))
      folder.disregard(run.name);
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Run& run = *wanted[i];
    if (is_done(folder, run)) {
      ++outcome.skipped;
      continue;
    }
    const RunStart start = {run, i, wanted.size(), seconds_left(wanted, i, folder, estimate)};
    RunRecord record = attempt(run, observer.starts ? observer.starts(start) : Progress());
    ++outcome.ran;
    if (record.failed())
      outcome.failed.push_back(record);
    else
      estimate.add(run.kind, record.seconds);
    folder.save(record);
    if (observer.ends) observer.ends(record);
  }
  return outcome;
}

}  // namespace dofla
