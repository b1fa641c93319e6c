// Reports for the tests of the page: one as a researcher would see it, and two that are hard.
#pragma once

#include "dofla/report/report_data.h"

namespace dofla::test {

// The 12 × 12 heads of GPT-2 and the dimensions at C = 64 as the paper prints them, with spectra
// that have those degrees of freedom, and a distillation.
ReportData paper_report();

// Markup, broken UTF-8 and control characters in every name; NaN and infinities in every number;
// layers without heads, curves without points.
ReportData hostile_report();

// 48 layers of 25 heads, M of every head its own: nothing fits as comfortably.
ReportData large_report();

}  // namespace dofla::test
