"""The plugin for vLLM 0.32: chunks of pictures taken anywhere in a prompt, by vLLM's own scheduler, pages and kernels.

`plugin` registers it; `scheduler` and `internals` alone know vLLM's private names; `desk` decides beside the
scheduler, `hands` move rows beside the model. Nothing of Emblema imports vLLM unless vLLM has loaded the plugin.
"""
