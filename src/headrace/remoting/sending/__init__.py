"""Messages on their way in: headers and bodies become entries of a batch, appended batches become answers.

``intake`` over ``send_intake`` (compiled) is the fast path: ``plain_send`` takes one send, ``sent_properties`` decodes
its properties, ``send_replies`` writes its answer. ``joint_sends`` appends what many clients send,
``held_sends`` says where delayed and half messages wait, ``late_answers`` has what waits for the disk too long.
``send_request`` is the header of all other sends, ``rows`` (compiled) the body of a batch with an identity.
"""
