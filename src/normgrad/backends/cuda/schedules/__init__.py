"""The kernels: where data lie meanwhile. What is computed of them is a formula's."""
