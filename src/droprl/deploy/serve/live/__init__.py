"""The live page: a policy that acts in its task, and its search for z* as it goes on."""
