/* float16 there and back, on bits alone: no rounding mode of the program matters. */
#include "acl/acl_base.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT aclFloat16 aclFloatToFloat16(float value)
{
    uint32_t bits, size, rest, half;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000;
    size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) /* not a number, whose first bits stay */
        return (aclFloat16)(sign | 0x7E00 | (size >> 13 & 0x1FF));
    if (size >= 0x477FF000) /* 65520 and more */
        return (aclFloat16)(sign | 0x7C00);
    if (size <= 0x33000000) /* 2**-25 lies between 0 and the smallest: 0 is even */
        return (aclFloat16)sign;
    int shift = 13;
    half = size - (112u << 23); /* the exponent counts from 15, not from 127 */
    if (size < 0x38800000) {    /* below 2**-14 the exponent stays, fewer bits are left */
        shift = 126 - (int)(size >> 23);
        half = (size & 0x7FFFFF) | 0x800000;
    }
    rest = half & ((1u << shift) - 1);
    half >>= shift;
    half += rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && half & 1);
    return (aclFloat16)(sign | half);
}

EXPORT float aclFloat16ToFloat(aclFloat16 value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, size = value & 0x7FFF, bits;
    if (size >= 0x7C00) { /* infinite, or not a number */
        bits = sign | 0x7F800000 | (size & 0x3FF) << 13;
    } else if (size >= 0x400) {
        bits = sign | ((size << 13) + (112u << 23));
    } else { /* size * 2**-24 */
        float small = (float)size * 0x1p-24f;
        memcpy(&bits, &small, sizeof bits);
        bits |= sign;
    }
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}
