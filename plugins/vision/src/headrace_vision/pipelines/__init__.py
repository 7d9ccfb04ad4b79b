"""The models that frames go through: the gate before them, models for crops, and what needs their results in order."""
