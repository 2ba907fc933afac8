// Three complete training steps through aclnn: forward, loss, backward, update, five times each.
//   batch norm, then ReLU; layer norm, then GELU; group norm with SiLU, fused.
// The loss is half the mean square of what comes out less a target; weight and bias learn.
#include "aclnnop/aclnn_batch_norm.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
#include "aclnnop/aclnn_group_norm_silu.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "example.h"

#include <cmath>
#include <functional>
#include <initializer_list>
#include <vector>

namespace {

const int64_t N = 4, C = 6, L = 5, GROUPS = 3, COUNT = N * C * L;
const double EPS = 1e-5;
const float RATE = 0.5f;

typedef std::vector<float> Values;
typedef std::function<aclnnStatus(uint64_t*, aclOpExecutor**)> Plan;
typedef std::function<aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream)> Run;

Floats put(const Values& values, std::initializer_list<int64_t> shape)
{
    return upload(values.data(), shape.begin(), (int)shape.size());
}

Floats room(std::initializer_list<int64_t> shape)
{
    return upload(nullptr, shape.begin(), (int)shape.size());
}

Values take(const Floats& from)
{
    Values values(from.bytes / sizeof(float));
    MUST(aclrtMemcpy(values.data(), from.bytes, from.memory, from.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    return values;
}

void give(const Values& values, Floats& to)
{
    MUST(aclrtMemcpy(to.memory, to.bytes, values.data(), to.bytes, ACL_MEMCPY_HOST_TO_DEVICE));
}

// Both stages of one operator.
void compute(aclrtStream stream, const Plan& plan, const Run& run)
{
    uint64_t bytes = 0;
    aclOpExecutor* executor = nullptr;
    MUST(plan(&bytes, &executor));
    void* workspace = workspace_of(bytes);
    MUST(run(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    if (workspace)
        MUST(aclrtFree(workspace));
}

struct Network {
    const char* name;
    std::function<void()> forward, backward; // the operators alone
    float (*act)(float);                     // what follows on the host; null: the operator has it
    float (*slope)(float);
};

float relu(float z) { return z > 0 ? z : 0; }
float relu_slope(float z) { return z > 0 ? 1.0f : 0.0f; }
float normal(float z) { return 0.5f * (1 + std::erf(z * 0.70710678f)); }
float gelu(float z) { return z * normal(z); }
float gelu_slope(float z) { return normal(z) + z * 0.39894228f * std::exp(-0.5f * z * z); }

void train(const Network& net, const Values& target, Floats& y, Floats& dy, Floats* parameters,
           Floats* gradients)
{
    for (int step = 0; step < 5; step++) {
        net.forward();
        Values z = take(y), gradient(COUNT);
        double loss = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            float out = net.act ? net.act(z[i]) : z[i], off = out - target[i];
            loss += 0.5 * off * off / COUNT;
            gradient[i] = off / COUNT * (net.slope ? net.slope(z[i]) : 1);
        }
        give(gradient, dy);
        net.backward();
        for (int one = 0; one < 2; one++) {
            Values now = take(parameters[one]), change = take(gradients[one]);
            for (size_t i = 0; i < now.size(); i++)
                now[i] -= RATE * change[i];
            give(now, parameters[one]);
        }
        printf("%s loss %d: %.9g\n", net.name, step, loss);
    }
    const char* names[] = {"weight", "bias"};
    for (int one = 0; one < 2; one++) {
        printf("%s ", net.name);
        show(names[one], parameters[one]);
    }
}

} // namespace

int main()
{
    aclrtStream stream = begin();
    Values data(COUNT), target(COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        data[i] = 1 + 3 * std::sin(0.7f * (float)i);
        target[i] = std::cos(0.3f * (float)i);
    }
    const bool all[] = {true, true, true};
    aclBoolArray* mask = aclCreateBoolArray(all, 3);
    Floats x = put(data, {N, C, L}), y = room({N, C, L}), dy = room({N, C, L}), dx = room({N, C, L});

    for (int which = 0; which < 3; which++) {
        int64_t width = which == 1 ? L : C;
        Floats parameters[] = {put(Values(width, 1.0f), {width}), put(Values(width, 0.0f), {width})};
        Floats gradients[] = {room({width}), room({width})};
        Floats &weight = parameters[0], &bias = parameters[1];
        Floats &dweight = gradients[0], &dbias = gradients[1];
        Network net;
        std::vector<Floats> kept;
        aclIntArray* shape = nullptr;
        if (which == 0) {
            kept = {room({C}), room({C}), put(Values(C, 0.0f), {C}), put(Values(C, 1.0f), {C})};
            net = {"batch_norm",
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnBatchNormGetWorkspaceSize(
                                       x.tensor, weight.tensor, bias.tensor, kept[2].tensor,
                                       kept[3].tensor, true, 0.1, EPS, y.tensor, kept[0].tensor,
                                       kept[1].tensor, size, made);
                               },
                               aclnnBatchNorm);
                   },
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnBatchNormBackwardGetWorkspaceSize(
                                       dy.tensor, x.tensor, weight.tensor, nullptr, nullptr,
                                       kept[0].tensor, kept[1].tensor, true, EPS, mask, dx.tensor,
                                       dweight.tensor, dbias.tensor, size, made);
                               },
                               aclnnBatchNormBackward);
                   },
                   relu, relu_slope};
        } else if (which == 1) {
            shape = aclCreateIntArray(&L, 1);
            kept = {room({N, C, 1}), room({N, C, 1})};
            net = {"layer_norm",
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnLayerNormGetWorkspaceSize(
                                       x.tensor, shape, weight.tensor, bias.tensor, EPS, y.tensor,
                                       kept[0].tensor, kept[1].tensor, size, made);
                               },
                               aclnnLayerNorm);
                   },
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnLayerNormBackwardGetWorkspaceSize(
                                       dy.tensor, x.tensor, shape, kept[0].tensor, kept[1].tensor,
                                       weight.tensor, bias.tensor, mask, dx.tensor, dweight.tensor,
                                       dbias.tensor, size, made);
                               },
                               aclnnLayerNormBackward);
                   },
                   gelu, gelu_slope};
        } else {
            kept = {room({N, GROUPS}), room({N, GROUPS})};
            char format[] = "NCHW";
            net = {"group_norm",
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnGroupNormSiluGetWorkspaceSize(
                                       x.tensor, weight.tensor, bias.tensor, GROUPS, EPS, y.tensor,
                                       kept[0].tensor, kept[1].tensor, size, made);
                               },
                               aclnnGroupNormSilu);
                   },
                   [&] {
                       compute(stream,
                               [&](uint64_t* size, aclOpExecutor** made) {
                                   return aclnnGroupNormSwishGradGetWorkspaceSize(
                                       dy.tensor, kept[0].tensor, kept[1].tensor, x.tensor,
                                       weight.tensor, bias.tensor, GROUPS, format, 1.0, true, true,
                                       dx.tensor, dweight.tensor, dbias.tensor, size, made);
                               },
                               aclnnGroupNormSwishGrad);
                   },
                   nullptr, nullptr};
        }
        train(net, target, y, dy, parameters, gradients);
        for (const Floats& gone : kept)
            drop(gone);
        for (const Floats& gone : {weight, bias, dweight, dbias})
            drop(gone);
        if (shape)
            MUST(aclDestroyIntArray(shape));
    }
    for (const Floats& gone : {x, y, dy, dx})
        drop(gone);
    MUST(aclDestroyBoolArray(mask));
    finish(stream, nullptr);
    return 0;
}
