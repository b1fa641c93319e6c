// The report as one self-contained HTML page: no network, no other file, readable without script.
#pragma once

#include <string>

#include "dofla/report/report_data.h"

namespace dofla {

// The same data gives the same bytes. Every string of `data` is escaped: names are hostile.
std::string render_page(const ReportData& data);

}  // namespace dofla
