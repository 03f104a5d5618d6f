/* work.h: what the calls of a step compute and move, and the least time that the card needs for it: of each call the longer
 * of two times, its operations at the peak of the units that do them and its bytes at the bandwidth of the memory. What
 * it takes to launch a kernel is not in it. */
#ifndef MT_EAGER_WORK_H
#define MT_EAGER_WORK_H

#include "card.h"

typedef struct Work {
    double flops;   /* of products, convolutions and attention, as torch.utils.flop_counter counts them, and of cuDNN's
                       recurrent layers, which it leaves out */
    double bytes;   /* read and written */
    double seconds;
} Work;

/* The call that runs. */
typedef struct Kernel {
    double flops, bytes;
    double seconds; /* that its operations take */
} Kernel;

#endif
