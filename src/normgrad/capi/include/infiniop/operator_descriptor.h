/* What the descriptors of all operators have in common. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_OPERATOR_DESCRIPTOR_H
#define NORMGRAD_INFINIOP_OPERATOR_DESCRIPTOR_H

#include "infiniop/handle.h"
#include "infiniop/tensor_descriptor.h"

/* How a descriptor begins; it is made by the library alone. */
struct InfiniopDescriptor {
    int device;
    int device_id;
};

typedef infiniStatus_t infiniopStatus_t; /* what the published destroy function returns */

#endif
