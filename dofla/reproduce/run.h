// The runs of a matrix: each has a name, settings and a result, kept in a small JSON file of its
// own. What is done with the same settings is not done again; what fails is recorded, and the rest
// goes on.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/core/progress.h"

namespace dofla {

struct Run {
  std::string name;  // of its file, too
  std::string kind;  // runs of a kind take about as long: for the remaining time

  // What the result depends on. May look at the results of earlier runs, and throw Error if one
  // that it needs is missing.
  std::function<Json()> settings;
  std::function<Json(const Progress& progress)> work;  // the result
};

struct RunRecord {
  std::string name;
  Json settings;
  Json result;
  std::string error;   // one line; empty if all went well
  double seconds = 0;  // that the work took

  bool failed() const { return !error.empty(); }
};

// The folder of the records, read once and kept up to date.
class RunFolder {
 public:
  explicit RunFolder(const fs::path& folder);  // made if it is not there

  const fs::path& path() const { return folder_; }
  const RunRecord* find(const std::string& name) const;  // nullptr if there is none
  // The result of a run that went well; Error if there is none.
  const Json& result(const std::string& name) const;
  void save(RunRecord record);              // whole or not at all
  void disregard(const std::string& name);  // as if there were none; its file stays

 private:
  fs::path folder_;
  std::map<std::string, RunRecord> records_;
};

struct RunStart {
  const Run& run;
  size_t number = 0;  // from 0
  size_t total = 0;
  // For this run and all after it, from how long others of their kinds took; nothing as long as
  // there are none.
  std::optional<double> seconds_left;
};

// How a caller chooses and watches. Any of them may be empty.
struct MatrixObserver {
  // Runs that are not wanted are passed over; their records are disregarded unless they have the
  // present settings.
  std::function<bool(const Run&)> wanted;
  std::function<Progress(const RunStart&)> starts;  // what it returns follows the run's own steps
  std::function<void(const RunRecord&)> ends;
};

struct MatrixOutcome {
  int64_t ran = 0;
  int64_t skipped = 0;  // done before, with the same settings
  std::vector<RunRecord> failed;
};

// In the given order, in which a run stands after those whose results it needs. Throws Error only
// if a record cannot be written, and Cancelled if the caller stops a run through its Progress.
MatrixOutcome run_matrix(const std::vector<Run>& runs, RunFolder& folder,
                         const MatrixObserver& observer = {});

}  // namespace dofla
