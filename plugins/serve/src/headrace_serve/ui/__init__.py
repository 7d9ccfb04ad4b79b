"""The live page: what a server's pipelines do at this moment, forms to try its models, and a load test.

Nothing of it runs while no browser looks: `live` attaches its probe with the first question for the state, and detaches it
when none has come for some seconds.
"""
