/* Handles, tensor descriptors, and every operator. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_H
#define NORMGRAD_INFINIOP_H

#include "infiniop/handle.h"
#include "infiniop/ops/batch_norm_backward.h"
#include "infiniop/tensor_descriptor.h"

#endif
