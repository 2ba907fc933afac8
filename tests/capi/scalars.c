/* Scalars, lists, float16 and the sizes of types. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"
#define RECENT() aclGetRecentErrMsg()
#include "expect.h"

static void scalars(void)
{
    float number = 2.5f;
    aclScalar* scalar = aclCreateScalar(&number, ACL_FLOAT);
    EXPECT(scalar != NULL, 1);
    EXPECT(aclDestroyScalar(scalar), 0);
    EXPECT(aclDestroyScalar(scalar), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclDestroyScalar(NULL), 0);
    EXPECT(aclCreateScalar(NULL, ACL_FLOAT) == NULL, 1);
    EXPECT(strcmp(aclGetRecentErrMsg(), "aclCreateScalar: value must not be null"), 0);
    EXPECT(aclCreateScalar(&number, ACL_INT4) == NULL, 1);
    EXPECT(aclDataTypeSize(ACL_FLOAT), 4);
    EXPECT(aclDataTypeSize(ACL_COMPLEX128), 16);
    EXPECT(aclDataTypeSize(ACL_FLOAT8_E5M2), 1);
    EXPECT(aclDataTypeSize(ACL_DT_UNDEFINED), 0);
}

static aclTensor* tensor(void)
{
    static const int64_t dims[2] = {2, 3};
    static float data[6];
    return aclCreateTensor(dims, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 2, data);
}

/* A list ends its members; an unknown type makes a tensor like any other. */
static void lists(void)
{
    const int64_t dims[1] = {3};
    aclTensor* tensors[3] = {tensor(), NULL, tensor()};
    uint64_t size = 0;
    int64_t offset = 0;
    aclTensorList* list = aclCreateTensorList((const aclTensor* const*)tensors, 3);
    EXPECT(aclGetTensorListSize(list, &size), 0);
    EXPECT(size, 3);
    EXPECT(aclGetTensorListSize(NULL, &size), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(aclGetTensorListSize(list, NULL), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(aclGetViewOffset(tensors[2], &offset), 0);
    EXPECT(aclDestroyTensorList(list), 0);
    EXPECT(aclDestroyTensorList(list), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclDestroyTensorList(NULL), 0);
    EXPECT(aclGetViewOffset(tensors[2], &offset), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclDestroyTensor(tensors[0]), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclCreateTensorList((const aclTensor* const*)tensors, 1) == NULL, 1); /* it ended */
    EXPECT(aclCreateTensorList(NULL, 2) == NULL, 1);

    double one = 1;
    aclScalar* numbers[2] = {aclCreateScalar(&one, ACL_DOUBLE), aclCreateScalar(&one, ACL_DOUBLE)};
    aclScalarList* both = aclCreateScalarList((const aclScalar* const*)numbers, 2);
    EXPECT(aclGetScalarListSize(both, &size), 0);
    EXPECT(size, 2);
    EXPECT(aclDestroyScalarList(both), 0);
    EXPECT(aclDestroyScalar(numbers[1]), ACLNN_ERR_PARAM_INVALID);
    aclTensor* other = tensor();
    const aclScalar* wrong[1] = {(const aclScalar*)other};
    EXPECT(aclCreateScalarList(wrong, 1) == NULL, 1);
    EXPECT(aclDestroyTensor(other), 0);

    aclIntArray* sizes = aclCreateIntArray(dims, 1);
    EXPECT(aclGetIntArraySize(sizes, &size), 0);
    EXPECT(size, 1);
    EXPECT(aclDestroyIntArray(sizes), 0);
    aclDataType dtype = ACL_FLOAT;
    aclTensor* unknown = aclCreateTensor(dims, 1, (aclDataType)99, NULL, 0, ACL_FORMAT_ND, dims, 1,
                                         NULL);
    EXPECT(aclGetDataType(unknown, &dtype), 0);
    EXPECT(dtype, 99);
    EXPECT(aclDestroyTensor(unknown), 0);
}

/* Each float16, and what lies between it and the next: half goes to the even one. */
static void float16(void)
{
    for (unsigned bits = 0; bits < 0x7C00; bits++) {
        int power = (int)(bits >> 10) - 25;
        float value = bits < 0x400 ? ldexpf((float)bits, -24)
                                   : ldexpf((float)(0x400 | (bits & 0x3FF)), power);
        EXPECT(aclFloat16ToFloat((aclFloat16)bits) == value, 1);
        EXPECT(aclFloat16ToFloat((aclFloat16)(bits | 0x8000)) == -value, 1);
        EXPECT(aclFloatToFloat16(value), bits);
        EXPECT(aclFloatToFloat16(-value), bits | 0x8000);
        float next = bits == 0x7BFF ? 65536 : aclFloat16ToFloat((aclFloat16)(bits + 1));
        float middle = (value + next) / 2;
        EXPECT(aclFloatToFloat16(middle), bits + (bits & 1));
        EXPECT(aclFloatToFloat16(nextafterf(middle, 0)), bits);
        EXPECT(aclFloatToFloat16(nextafterf(middle, INFINITY)), bits + 1);
    }
    EXPECT(aclFloatToFloat16(INFINITY), 0x7C00);
    EXPECT(aclFloatToFloat16(-1e30f), 0xFC00);
    EXPECT(aclFloat16ToFloat(0xFC00) == -INFINITY, 1);
    EXPECT(isnan(aclFloat16ToFloat(0x7C01)), 1);
    EXPECT((aclFloatToFloat16(NAN) & 0x7FFF) > 0x7C00, 1);
}

int main(void)
{
    scalars();
    lists();
    float16();
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
