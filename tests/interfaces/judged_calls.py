"""What `check --lib` asks a library, asked of the Python functions, on a backend of one's choice.

As a script, under Triton's interpreter: the kernels of a GPU behind both interfaces.
"""

import sys
from dataclasses import replace

import numpy as np

from normgrad import aclnn, backends, infiniop, verify
from normgrad.aclnn.executor import _decide
from normgrad.aclnn.pages import PAGES
from normgrad.core import plan
from normgrad.infiniop.operators import OPERATORS
from normgrad.verify.clib import aclnn as vendors
from normgrad.verify.clib import infiniop as infini
from normgrad.verify.clib.aclnn_call import arguments_of, result_dtype
from normgrad.verify.clib.beside import beside
from normgrad.verify.clib.job import arrays_of, concluded
from normgrad.verify.clib.memory import nan_like
from normgrad.verify.run import to_array

BY_NAME = {one.name: one for one in (*PAGES, *OPERATORS)}


def jobs():
    """Those with numbers, without special memory, which Python does not choose."""
    listed = [*vendors.jobs("Python"), *infini.jobs("Python")]
    return [job for job in listed if job.case is not None and not job.variant]


def some(per_operator):
    """The first ones of each operator and type; all that are about what no other test is."""
    taken, chosen = {}, []
    for job in jobs():
        key = job.operator, job.dtype, job.case.activation
        taken[key] = taken.get(key, 0) + 1
        if taken[key] <= per_operator:
            chosen.append(job)
    return chosen


def outcome(job):
    """The job's, by the same judge."""
    problem = verify.make_problem(job.case, job.dtype)
    if job.operator.startswith("aclnn"):
        return _through_aclnn(BY_NAME[job.operator], job, problem)
    return _through_infiniop(BY_NAME[job.operator], job, problem)


def _through_aclnn(page, job, problem):
    types = problem.result_dtypes.items()
    types = {role: result_dtype(page, role, problem, usual) for role, usual in types}
    problem = replace(problem, result_dtypes=types)
    more = beside(page.name, problem)
    hosts = arrays_of(problem) | {role: nan_like(one.tensor) for role, one in more.items()}
    values, made = [], {}
    for one in arguments_of(page, problem.case, hosts):
        value = one.value
        if value is not None and one.kind == "tensor":
            array = to_array(value, None)
            role = one.writes or one.role
            if role in (*problem.measured, *more):
                array = array.copy() if role in problem.spec.updated or one.writes else array
                made[role] = array
            value = aclnn.tensor(array, format=one.form)
        elif one.kind == "mask":
            value = aclnn.aclCreateBoolArray(value, len(value))
        elif one.kind == "sizes":
            value = aclnn.aclCreateIntArray(value, len(value))
        values.append(value)
    status, size, executor = getattr(aclnn, f"{page.name}GetWorkspaceSize")(*values)
    assert status == 0, aclnn.aclGetRecentErrMsg()
    assert aclnn.aclrtSetDevice(0) == 0
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    assert getattr(aclnn, page.name)(workspace, size, executor, None) == 0, (
        aclnn.aclGetRecentErrMsg()
    )
    assert workspace is None or aclnn.aclrtFree(workspace) == 0
    return concluded(job, problem, more, [_stored(made)], [], [])


def _through_infiniop(operator, job, problem):
    more = beside(operator.name, problem)
    hosts = arrays_of(problem) | {role: nan_like(one.tensor) for role, one in more.items()}
    given = {one.role: replace(hosts[one.role], array=hosts[one.role].array.copy())
             for one in operator.tensors}  # fmt: skip
    tensors = []
    for host in given.values():
        kind = infini._DTYPES[host.dtype]
        steps = tuple(host.tensor.strides)
        shape = host.tensor.shape
        tensors.append(infiniop.infiniopCreateTensorDescriptor(len(shape), shape, steps, kind)[1])
    handle = infiniop.infiniopCreateHandle()[1]
    numbers = [getattr(problem.case, one.role) for one in operator.numbers]
    create = getattr(infiniop, f"infiniopCreate{operator.name}Descriptor")
    status, desc = create(handle, *tensors, *numbers)
    assert status == 0, infiniop.recent_error()
    size = getattr(infiniop, f"infiniopGet{operator.name}WorkspaceSize")(desc)[1]
    workspace = infiniop.infinirtMalloc(size)[1] if size else None
    addresses = [host.array.ctypes.data for host in given.values()]
    status = getattr(infiniop, f"infiniop{operator.name}")(desc, workspace, size, *addresses, None)
    assert status == 0, infiniop.recent_error()
    assert infiniop.infinirtFree(workspace) == 0
    results = {one.role for one in operator.tensors if one.written}
    types = {role: kind for role, kind in problem.result_dtypes.items() if role in results}
    problem = replace(problem, result_dtypes=types)
    return concluded(job, problem, more, [{role: given[role].array for role in results}], [], [])


def _stored(made):
    """As memory has them: bfloat16 as its bits."""
    return {
        role: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        for role, array in made.items()
    }


def use(backend):
    """Let that backend compute, and no other."""
    backends.preference = lambda device: (backend,)
    plan._make_plan.cache_clear()
    _decide.cache_clear()


def main(per_operator):
    """Every fault, a line each."""
    use("cuda")
    for job in some(int(per_operator)):
        if job.dtype == "bfloat16":  # the interpreter cuts off where a GPU rounds
            continue
        found = outcome(job)
        if found.verdict != "PASS":
            print(job.operator, job.case.id, job.dtype, found.share, found.detail)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
