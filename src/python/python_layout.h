// Describes the Python that this library was built for and runs in.
#pragma once

#include "ring/python_layout.h"

#ifdef __cplusplus
extern "C" {
using haiprof::ring::PythonLayout;
#endif

// With the GIL. NULL, or why it cannot be described; `layout` is then without a version.
const char* haiprof_describe_python(PythonLayout* layout);

#ifdef __cplusplus
}
#endif
