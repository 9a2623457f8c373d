"""The HTTP server: requests in, denoising steps out as they happen. The face is `app.create_app`, `run.run` starts it.

`worker` owns the net, `embedding` the encoder, `guard` stands before everything that comes in.
"""
