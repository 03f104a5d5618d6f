/* estimate.h: sizes that a library alone knows are taken for what they are likely to be, or for the bounds of that. */
#ifndef MT_ESTIMATE_H
#define MT_ESTIMATE_H

#include <stdbool.h>

typedef enum EstimateKind { ESTIMATE_LIKELY, ESTIMATE_LEAST, ESTIMATE_MOST, ESTIMATES } EstimateKind;
typedef struct Estimate {
    EstimateKind which;
    bool any;           /* such a size was asked for */
} Estimate;

#endif
