"""Programs for data that start at no multiple of 16 bytes: the same, on copies that do.

Asynchronous copies cannot take such data. Kernels that can add up in another order, and a slice of
a batch is to have the bits that the batch has there, wherever it starts.
"""

from dataclasses import replace

from normgrad.backends.cuda.plan.program import Argument, Builder, Launch, Program, Ref, Step
from normgrad.core.spec import DATA, Spec


def on_aligned_copies(program: Program, spec: Spec) -> Program:
    """With copies of the data before it, and of dx behind it; what it copies itself may be odd."""
    builder = Builder(spec, "")
    builder.used = program.workspace_bytes
    touched = {ref.role for step in program.steps if not _copies(step) for ref in step.refs}
    places: dict[str, Ref] = {role: builder.move(role) for role in DATA if role in touched}
    builder.steps += [with_places(step, places) for step in program.steps]
    builder.words = program.words
    return builder.finish(f"{program.strategy}, of copies")


def _copies(step: Step) -> bool:
    return isinstance(step, Launch) and step.kernel.startswith("copy.")


def with_places(step: Step, places: dict[str, Ref]) -> Step:
    """The same step on other memory in the place of some roles' or of the workspace."""

    def place(value: Argument) -> Argument:
        if not isinstance(value, Ref) or value.role not in places:
            return value
        there = places[value.role]
        return value._replace(role=there.role, offset=there.offset + value.offset)

    if not isinstance(step, Launch):
        target = place(step.target)
        assert isinstance(target, Ref)
        return replace(step, target=target)

    arguments = tuple((name, place(value)) for name, value in step.arguments)
    return replace(step, arguments=arguments)
