"""The APIs of other servers: tables of functions, which import nothing of this server but how it reads tensors."""
