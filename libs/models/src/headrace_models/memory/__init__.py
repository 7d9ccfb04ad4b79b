"""The memory that models may take together: the budget, the devices, the sizes that were measured."""
