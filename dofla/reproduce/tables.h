// From the records of a study to tables like the paper's, its figures beside ours.
#pragma once

#include "dofla/report/result_table.h"
#include "dofla/reproduce/run.h"
#include "dofla/reproduce/study.h"

namespace dofla {

// Everything that there is a record of: what was not run, or failed, is a dash.
TablesPage make_tables(const Study& study, const RunFolder& folder,
                       const std::vector<RunRecord>& failed);

// The pieces: one table a cost where there is one.
ResultTable dimension_table(const Study& study, const RunFolder& folder, int64_t cost);
ResultTable head_table(const Study& study, const RunFolder& folder);
ResultTable loss_table(const Study& study, const RunFolder& folder, int64_t cost);
// Strategies beside Fix, seed by seed.
ResultTable paired_table(const Study& study, const RunFolder& folder, int64_t cost);
ResultTable baseline_table(const Study& study, const RunFolder& folder, int64_t cost);
ResultTable equal_time_table(const Study& study, const RunFolder& folder, int64_t cost);
ResultTable task_table(const Study& study, const RunFolder& folder, int64_t cost, bool finetuned);
ResultTable inference_table(const Study& study, const RunFolder& folder, int64_t cost);
ResultTable training_time_table(const Study& study, const RunFolder& folder, int64_t cost);

}  // namespace dofla
