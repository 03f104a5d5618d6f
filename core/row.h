/* row.h: one result as named values in the order of its columns, and as one RFC 4180 line. */
#ifndef MT_ROW_H
#define MT_ROW_H

#include "base.h"
#include "err.h"

/* The columns of DESIGN: name and group. The script's own axes stand behind graph.
 * Order is part of the interface. */
#define ROW_COLUMNS(X, AXES)                                                                                        \
    X(experiment, WHAT) X(case, WHAT) X(cell, WHAT) X(repeat, WHAT)                                                 \
    X(model, SETTING) X(device, SETTING) X(batch, SETTING) X(accumulate, SETTING) X(effective_batch, SETTING)       \
    X(precision, SETTING) X(checkpoint, SETTING) X(inplace, SETTING) X(mode, SETTING) X(optimizer, SETTING)         \
    X(allocator, SETTING) X(workspace_limit, SETTING) X(graph, SETTING) AXES                                        \
    X(status, OUTCOME) X(reason, OUTCOME)                                                                           \
    X(predicted_peak_bytes, PREDICTED) X(lower_bound_bytes, PREDICTED)                                              \
    X(peak_bytes, MEASURED) X(allocated_bytes, MEASURED) X(reserved_bytes, MEASURED) X(device_used_bytes, MEASURED) \
    X(untracked_bytes, MEASURED)                                                                                    \
    X(weights_bytes, PEAK) X(gradients_bytes, PEAK) X(optimizer_bytes, PEAK) X(activations_bytes, PEAK)             \
    X(activation_gradients_bytes, PEAK) X(input_bytes, PEAK) X(workspace_bytes, PEAK) X(other_bytes, PEAK)          \
    X(peak_op, PEAK)                                                                                                \
    X(steps, TIME) X(step_ms, TIME) X(step_ms_min, TIME) X(step_ms_p90, TIME) X(samples_per_s, TIME)                \
    X(loss_first, TRAINING) X(loss_last, TRAINING)                                                                  \
    X(seed, PROVENANCE) X(device_name, PROVENANCE) X(driver, PROVENANCE) X(version, PROVENANCE)                     \
    X(started_at, PROVENANCE)

typedef struct Row Row;

/* The design's columns with n_axes of the script's own between; an axis may not be called like a column.
 * NULL and *e: failed. */
Row *row_new(const char *const *axes, int n_axes, Err *e);
void row_free(Row *r);
int row_columns(const Row *r);
const char *row_column(const Row *r, int i);
/* Values; a column that does not exist is ERR_INTERNAL. Text starting with = + - @ tab or CR gets a leading '
 * (spreadsheets would run it); newlines are written as \n. */
int row_set_text(Row *r, const char *column, const char *text, Err *e);
int row_set_int(Row *r, const char *column, int64_t value, Err *e);
/* In the shortest form that reads back equal; NaN and infinities as nan, inf, -inf. */
int row_set_number(Row *r, const char *column, double value, Err *e);
/* "" when not set */
const char *row_get(const Row *r, const char *column);
void row_clear(Row *r); /* values, not columns */
/* The header, or the values, as one line with "\n". Free with mem_free; NULL: no memory. */
char *row_header_line(const Row *r);
char *row_line(const Row *r);

#endif
