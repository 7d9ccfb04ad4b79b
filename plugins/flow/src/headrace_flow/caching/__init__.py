"""`Cache` and `Once`: equal requests, whose answers are kept, or shared while they are made."""
